"""`$lookup` and `$graphLookup` into collections of other shards."""

import bson

from checks import check
from scenarios import spread_evenly

JOIN = {"$lookup": {"from": "plants", "localField": "of", "foreignField": "name", "as": "found"}}


def read_by(cluster, work):
    """How many documents of the plants the shards read meanwhile."""
    for members in cluster.shards:
        with members.client() as shard:
            shard.joining.command("profile", 2)
    work()
    total = 0
    for members in cluster.shards:
        with members.client() as shard:
            shard.joining.command("profile", 0)
            done = shard.joining["system.profile"].find({"ns": "joining.plants"})
            total += sum(entry.get("docsExamined", 0) for entry in done)
            shard.joining["system.profile"].drop()
    return total


def names(documents):
    return [sorted(plant["name"] for plant in document["found"]) for document in documents]


@check
def joins_ask_for_what_they_need(cluster):
    """A few documents are looked up by an index of the other collection, and do not have the whole of it read."""
    with cluster.client(0) as client:
        db = client.joining
        plants = spread_evenly(client, "joining.plants", 3000)
        orders = db.orders
        values = ["plant 7", "plant 2900", None, ["plant 1", "plant 2999"], bson.Regex("^plant 12$"), "none"]
        orders.insert_many([{"_id": at, "of": value} for at, value in enumerate(values)])
        plants.insert_one({"_id": "odd", "k": -1, "name": bson.Regex("^plant 12$")})
        expected = [["plant 7"], ["plant 2900"], [], ["plant 1", "plant 2999"], [bson.Regex("^plant 12$")], []]

        def join(**more):
            return names(orders.aggregate([{"$sort": {"_id": 1}}, JOIN], **more))

        assert join() == expected
        plants.create_index("name")
        read = read_by(cluster, join)
        assert 0 < read < 500, f"{read} documents were read for six questions"
        # Many questions have it read once; what is found is the same.
        many = db.many
        many.insert_many([{"_id": at, "of": f"plant {at}"} for at in range(200)])
        found = names(many.aggregate([{"$sort": {"_id": 1}}, JOIN]))
        assert found == [[f"plant {at}"] for at in range(200)], found
        # In a transaction, and as of a time.
        with client.start_session() as session, session.start_transaction():
            assert join(session=session) == expected
        with client.start_session(snapshot=True) as session:
            assert join(session=session) == expected
        # An index that compares in another way does not answer.
        plants.drop_index("name_1")
        plants.create_index("name", collation={"locale": "en", "strength": 2})
        orders.insert_one({"_id": 9, "of": "PLANT 8"})
        assert join() == [*expected, []]
        assert join(collation={"locale": "en", "strength": 2}) == [*expected, ["plant 8"]]
        stages = [{"$match": {"_id": 0}}, {"$graphLookup": {
            "from": "plants", "startWith": "$of", "connectFromField": "next", "connectToField": "name", "as": "found"}}]
        assert names(orders.aggregate(stages)) == [["plant 7"]]


@check
def joins_compare_as_the_command_does(cluster):
    """The other collection's default collation is not the join's."""
    with cluster.client(0) as client:
        db = client.joining_words
        db.create_collection("plants", collation={"locale": "en", "strength": 2})
        client.admin.command("shardCollection", "joining_words.plants", key={"_id": "hashed"}, collation={"locale": "simple"})
        db.plants.insert_many([{"name": name} for name in ("oat", "OAT", "rye")])
        db.plants.create_index("name", name="simple", collation={"locale": "simple"})
        db.orders.insert_one({"of": "oat"})
        assert names(db.orders.aggregate([JOIN])) == [["oat"]]
        assert names(db.orders.aggregate([JOIN], collation={"locale": "en", "strength": 2})) == [["OAT", "oat"]]
