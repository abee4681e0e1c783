"""Functions in JavaScript over shards."""

from checks import check
from scenarios import spread_evenly

SUM = "function(key, values) { return Array.sum(values) }"
MEAN = {"$accumulator": {
    "init": "function() { return {n: 0, sum: 0} }",
    "accumulate": "function(s, x) { return {n: s.n + 1, sum: s.sum + x} }",
    "accumulateArgs": ["$k"],
    "merge": "function(a, b) { return {n: a.n + b.n, sum: a.sum + b.sum} }",
    "finalize": "function(s) { return s.sum / s.n }",
    "lang": "js"}}


@check
def functions_over_shards(cluster):
    with cluster.client() as client:
        spread_evenly(client, "javascript.plants")
        db = client.javascript
        db.plants.update_many({}, [{"$set": {"family": {"$cond": [{"$mod": ["$k", 2]}, "b", "a"]}}}])
        assert sorted(plant["k"] for plant in db.plants.find({"$where": "this.k >= 97"})) == [97, 98, 99]
        assert db.plants.update_many({"$where": "this.k >= 97"}, {"$set": {"late": True}}).modified_count == 3
        means = list(db.plants.aggregate([{"$group": {"_id": "$family", "mean": MEAN}}, {"$sort": {"_id": 1}}]))
        assert means == [{"_id": "a", "mean": 49.0}, {"_id": "b", "mean": 50.0}], means
        command = {"mapReduce": "plants", "map": "function() { emit(this.family, 1) }", "reduce": SUM}
        inline = db.command({**command, "out": {"inline": 1}})
        assert inline["results"] == [{"_id": "a", "value": 50.0}, {"_id": "b", "value": 50.0}], inline
        assert db.command({**command, "out": "counts"})["result"] == "counts"
        db.command({**command, "query": {"k": {"$lt": 10}}, "out": {"reduce": "counts"}})
        counts = list(db.counts.find(sort=[("_id", 1)]))
        assert counts == [{"_id": "a", "value": 55.0}, {"_id": "b", "value": 55.0}], counts
