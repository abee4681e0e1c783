"""Ten questions about the package index: each as the database answers it, and as plain Python computes it."""

from collections import Counter, defaultdict

QUESTIONS = []


def question(title):
    def add(function):
        QUESTIONS.append((title, function))
        return function
    return add


def names(package, field="depends"):
    return [d["name"] for group in package.get(field, []) for d in group["anyOf"]]


@question("which sections have the most packages")
def sections(c, packages):
    got = c.aggregate([{"$group": {"_id": "$section", "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}, {"$limit": 10}])
    count = Counter(p.get("section") for p in packages)
    return list(got), [{"_id": k, "n": n} for k, n in sorted(count.items(), key=lambda e: (-e[1], e[0]))[:10]]


@question("the largest games that are programs")
def large_games(c, packages):
    query = {"section": "games", "tags": "role::program", "installedSize": {"$gt": 10_000}}
    got = c.find(query, {"name": 1, "installedSize": 1, "_id": 0}).sort([("installedSize", -1), ("name", 1)]).limit(10)
    mine = [p for p in packages if p.get("section") == "games" and "role::program" in p.get("tags", [])
            and p.get("installedSize", 0) > 10_000]
    mine.sort(key=lambda p: (-p["installedSize"], p["name"]))
    return list(got), [{"name": p["name"], "installedSize": p["installedSize"]} for p in mine[:10]]


@question("how many packages need libc6 of some least version")
def need_libc(c, packages):
    got = c.count_documents({"depends.anyOf": {"$elemMatch": {"name": "libc6", "op": ">="}}})
    return got, sum(any(d["name"] == "libc6" and d.get("op") == ">=" for g in p.get("depends", []) for d in g["anyOf"])
                    for p in packages)


@question("the packages that most others depend upon")
def most_needed(c, packages):
    got = c.aggregate([
        {"$unwind": "$depends"}, {"$unwind": "$depends.anyOf"},
        {"$group": {"_id": "$depends.anyOf.name", "users": {"$sum": 1}, "constrained": {"$sum": {"$cond": [
            {"$ne": [{"$type": "$depends.anyOf.op"}, "missing"]}, 1, 0]}}}},
        {"$sort": {"users": -1, "_id": 1}}, {"$limit": 15},
    ])
    users, constrained = Counter(), Counter()
    for p in packages:
        for group in p.get("depends", []):
            for d in group["anyOf"]:
                users[d["name"]] += 1
                constrained[d["name"]] += "op" in d
    best = sorted(users.items(), key=lambda e: (-e[1], e[0]))[:15]
    return list(got), [{"_id": name, "users": n, "constrained": constrained[name]} for name, n in best]


@question("packages that offer at least four alternatives for one dependency")
def alternatives(c, packages):
    got = c.aggregate([
        {"$match": {"depends.anyOf.3": {"$exists": True}}},
        {"$project": {"_id": 0, "name": 1, "widest": {"$max": {"$map": {
            "input": "$depends", "as": "group", "in": {"$size": "$$group.anyOf"}}}}}},
        {"$sort": {"widest": -1, "name": 1}}, {"$limit": 20},
    ])
    mine = [{"name": p["name"], "widest": max(len(g["anyOf"]) for g in p["depends"])} for p in packages
            if any(len(g["anyOf"]) > 3 for g in p.get("depends", []))]
    return list(got), sorted(mine, key=lambda e: (-e["widest"], e["name"]))[:20]


@question("the maintainers with the most bytes, and in how many sections")
def maintainers(c, packages):
    got = c.aggregate([
        {"$group": {"_id": "$maintainer.email", "bytes": {"$sum": "$size"}, "mean": {"$avg": "$size"},
                    "sections": {"$addToSet": "$section"}, "first": {"$min": "$name"}}},
        {"$project": {"bytes": 1, "mean": {"$round": ["$mean", 2]}, "sections": {"$size": "$sections"}, "first": 1}},
        {"$sort": {"bytes": -1, "_id": 1}}, {"$limit": 10},
    ])
    groups = defaultdict(list)
    for p in packages:
        groups[p.get("maintainer", {}).get("email")].append(p)
    mine = [{"_id": email, "bytes": sum(p["size"] for p in ps), "mean": round(sum(p["size"] for p in ps) / len(ps), 2),
             "sections": len({p["section"] for p in ps if "section" in p}), "first": min(p["name"] for p in ps)}
            for email, ps in groups.items()]
    return list(got), sorted(mine, key=lambda e: (-e["bytes"], e["_id"] or ""))[:10]


@question("what the shells pull in: their direct dependencies, joined")
def shells(c, packages):
    got = c.aggregate([
        {"$match": {"section": "shells"}}, {"$unwind": "$depends"}, {"$unwind": "$depends.anyOf"},
        {"$lookup": {"from": c.name, "localField": "depends.anyOf.name", "foreignField": "name", "as": "needed"}},
        {"$unwind": "$needed"},
        {"$group": {"_id": "$name", "needs": {"$sum": 1}, "kilobytes": {"$sum": "$needed.installedSize"}}},
        {"$sort": {"kilobytes": -1, "_id": 1}},
    ])
    by_name = defaultdict(list)
    for p in packages:
        by_name[p["name"]].append(p)
    needs, kilobytes = Counter(), Counter()
    for p in packages:
        if p.get("section") == "shells":
            for name in names(p):
                for needed in by_name[name]:
                    needs[p["name"]] += 1
                    kilobytes[p["name"]] += needed.get("installedSize", 0)
    mine = [{"_id": n, "needs": needs[n], "kilobytes": kilobytes[n]} for n in needs]
    return list(got), sorted(mine, key=lambda e: (-e["kilobytes"], e["_id"]))


@question("Python libraries by name pattern, without a home page, and their sections")
def python_libraries(c, packages):
    query = {"name": {"$regex": "^python3-[a-d]"}, "homepage": {"$exists": False}}
    mine = [p for p in packages if p["name"][:9] in {f"python3-{x}" for x in "abcd"} and "homepage" not in p]
    got = [c.count_documents(query), sorted(c.distinct("section", query))]
    return got, [len(mine), sorted({p["section"] for p in mine})]


@question("three views of the whole index at once: priorities, sizes, architectures")
def views(c, packages):
    edges = [0, 100, 1000, 10_000, 100_000, 10**9]
    got = next(c.aggregate([{"$facet": {
        "priorities": [{"$sortByCount": "$priority"}],
        "sizes": [{"$match": {"installedSize": {"$exists": True}}},
                  {"$bucket": {"groupBy": "$installedSize", "boundaries": edges, "output": {"n": {"$sum": 1}}}}],
        "architectures": [{"$group": {"_id": "$architecture", "n": {"$count": {}}}}, {"$sort": {"_id": 1}}],
    }}]))
    priorities = Counter(p["priority"] for p in packages)
    sizes = Counter(max(e for e in edges if e <= p["installedSize"]) for p in packages if "installedSize" in p)
    architectures = Counter(p["architecture"] for p in packages)
    # $sortByCount leaves the order of equal counts open.
    got["priorities"].sort(key=lambda e: (-e["count"], e["_id"]))
    return got, {
        "priorities": [{"_id": k, "count": n} for k, n in sorted(priorities.items(), key=lambda e: (-e[1], e[0]))],
        "sizes": [{"_id": k, "n": n} for k, n in sorted(sizes.items())],
        "architectures": [{"_id": k, "n": n} for k, n in sorted(architectures.items())],
    }


@question("after an update in place: which big packages unpack the most")
def ratios(c, packages):
    big = {"size": {"$gt": 1_000_000}, "installedSize": {"$exists": True}}
    ratio = {"$divide": [{"$multiply": ["$installedSize", 1024]}, "$size"]}
    changed = c.update_many(big, [{"$set": {"ratio": ratio, "tags": {"$ifNull": ["$tags", []]}}}]).modified_count
    got = [changed, list(c.find({"ratio": {"$gt": 8}}, {"_id": 1, "ratio": 1}).sort([("ratio", -1), ("_id", 1)]).limit(10))]
    mine = [p for p in packages if p["size"] > 1_000_000 and "installedSize" in p]
    best = sorted(({"_id": p["_id"], "ratio": p["installedSize"] * 1024 / p["size"]} for p in mine),
                  key=lambda e: (-e["ratio"], e["_id"]))
    return got, [len(mine), [e for e in best if e["ratio"] > 8][:10]]
