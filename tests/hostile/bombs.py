"""Attacks with work: operations that would need more memory, processor or disk than there is."""

import time

from bson import Int64, Regex

from attack import Attack
from values import nested

MEGABYTE = "x" * 1_000_000


class Bombs(Attack):
    """Asks for one bomb after another, now with a limit of time, now without. Replies are read, whatever they are."""

    # How often no limit is sent: then the operation ends by what the server allows, or when this client gives up.
    unlimited = 0.3

    def step(self, connection):
        made = self.random.choice(self.bombs())()
        made.setdefault("$db", "hostile")
        if self.random.random() > self.unlimited:
            made["maxTimeMS"] = self.random.choice([50, 200, 1000, 5000])
        reply = self.ask(connection, made)
        cursor = reply.get("cursor", {})
        for _ in range(self.random.randrange(3)):
            if not isinstance(cursor, dict) or not cursor.get("id"):
                return
            reply = self.ask(connection, {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].split(".", 1)[1], "$db": "hostile"})
            cursor = reply.get("cursor", {})

    def aggregate(self, *stages, collection="c0", **more):
        return {"aggregate": collection, "pipeline": list(stages), "cursor": {}, **more}

    def somewhere(self, expression):
        """An expression in one of the places where expressions are."""
        return self.random.choice([
            lambda: self.aggregate({"$project": {"r": expression}}),
            lambda: self.aggregate({"$match": {"$expr": expression}}),
            lambda: self.aggregate({"$group": {"_id": expression}}),
            lambda: {"find": "c0", "filter": {"$expr": expression}},
            lambda: {"find": "c0", "projection": {"r": expression}},
            lambda: {"find": "view", "filter": {"$expr": expression}},
            lambda: {"update": "c1", "updates": [{"q": {}, "u": [{"$set": {"r": expression}}], "multi": True}]},
            lambda: {"findAndModify": "c1", "query": {"$expr": expression}, "update": {"$set": {"z": 1}}},
            lambda: {"delete": "c1", "deletes": [{"q": {"$expr": {"$eq": [expression, "never"]}}, "limit": 0}]},
            lambda: {"count": "c0", "query": {"$expr": expression}},
            lambda: {"find": "c0", "filter": {}, "let": {"v": expression}},
        ])()


class Memory(Bombs):
    """Operations that would take any amount of memory."""

    name = "memory"

    def bombs(self):
        return [self.arrays, self.strings, self.many, self.facet, self.lookup, self.unwound, self.accumulators, self.sort, self.unions, self.views,
                self.windows, self.objects, self.reduce, self.spill, self.stages]

    def arrays(self):
        large = {"$range": [0, 4_000_000]}
        return self.somewhere({"$size": self.random.choice([
            {"$map": {"input": large, "in": MEGABYTE}}, {"$zip": {"inputs": [large] * 20}}, {"$concatArrays": [large] * 40}, {"$setUnion": [large] * 10},
            {"$map": {"input": large, "in": {"$range": [0, 1000]}}}, {"$filter": {"input": large, "cond": True}}, {"$reverseArray": large},
            {"$sortArray": {"input": large, "sortBy": -1}}, {"$objectToArray": {"$arrayToObject": {"$map": {"input": large, "in": [{"$toString": "$$this"}, 1]}}}},
        ])})

    def strings(self):
        doubled = nested(30, lambda x: {"$let": {"vars": {"s": x}, "in": {"$concat": ["$$s", "$$s"]}}}, "abcdefgh")
        return self.somewhere({"$strLenBytes": self.random.choice([doubled, {"$replaceAll": {"input": MEGABYTE, "find": "x", "replacement": "y" * 1000}}])})

    def many(self):
        """Many values that are not too large, all in one document."""
        return self.somewhere({"$add": [{"$size": {"$range": [0, 1_000_000 + n]}} for n in range(100)]})

    def reduce(self):
        grow = {"$concatArrays": ["$$value", "$$value", ["$$this"]]}
        return self.somewhere({"$size": {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": [1], "in": grow}}})

    def facet(self):
        return self.aggregate({"$set": {"k": {"$range": [0, 10_000]}}}, {"$unwind": "$k"}, {"$facet": {"n": [{"$count": "n"}], "m": [{"$sort": {"k": -1}}, {"$limit": 1}]}},
                              collection="large")

    def lookup(self):
        return self.aggregate({"$lookup": {"from": "large", "pipeline": [{"$set": {"k": {"$range": [0, 1000]}}}, {"$unwind": "$k"}], "as": "x"}}, {"$project": {"n": {"$size": "$x"}}})

    def unwound(self):
        return self.aggregate({"$lookup": {"from": "large", "pipeline": [{"$set": {"k": {"$range": [0, 1000]}}}, {"$unwind": "$k"}], "as": "x"}}, {"$unwind": "$x"}, {"$count": "n"})

    def accumulators(self):
        how = self.random.choice([{"$push": "$$ROOT"}, {"$addToSet": {"k": "$k", "s": "$s"}}, {"$mergeObjects": {"$arrayToObject": [[["$k", "$s"]]]}},
                                  {"$firstN": {"n": 10**9, "input": "$$ROOT"}}, {"$topN": {"n": 10**9, "sortBy": {"k": 1}, "output": "$$ROOT"}},
                                  {"$percentile": {"input": "$k", "p": [0.5], "method": "approximate"}}, {"$concatArrays": ["$s"]}])
        return self.aggregate({"$set": {"k": {"$range": [0, 3000]}}}, {"$unwind": "$k"}, {"$set": {"k": {"$toString": "$k"}}}, {"$group": {"_id": self.random.choice([None, "$k"]), "all": how}},
                              {"$project": {"n": {"$size": {"$ifNull": [{"$cond": [{"$isArray": "$all"}, "$all", []]}, []]}}}}, collection=self.random.choice(["large", "c0"]))

    def sort(self):
        return self.aggregate({"$set": {"k": {"$range": [0, 500]}}}, {"$unwind": "$k"}, {"$sort": {"k": -1, "s": 1}}, collection="large",
                              allowDiskUse=self.random.random() < 0.5)

    def windows(self):
        return self.aggregate({"$set": {"k": {"$range": [0, 300]}}}, {"$unwind": "$k"}, {"$setWindowFields": {"sortBy": {"k": 1}, "output": {"all": {"$push": "$s", "window": {
            "documents": ["unbounded", "current"]}}}}}, {"$count": "n"}, collection="large")

    def objects(self):
        return self.somewhere({"$bsonSize": {"$arrayToObject": {"$map": {"input": {"$range": [0, 2_000_000]}, "in": {"k": {"$toString": "$$this"}, "v": "x" * 100}}}}})

    def unions(self):
        return self.aggregate(*nested(self.random.choice([3, 3, 10, 19]), lambda x: [{"$redact": "$$KEEP"}] * 200 + [{"$unionWith": {"coll": "c0", "pipeline": x}}], [{"$match": {}}]))

    def stages(self):
        return self.aggregate(*[{"$unionWith": {"coll": "c0", "pipeline": [{"$unionWith": "c0"}] * 30}}] * self.random.choice([10, 200, 999]), {"$count": "n"})

    def views(self):
        """Views on views are made by the attack on the catalog; here they are read."""
        return {"find": f"v{self.random.randrange(30)}", "filter": {}}

    def spill(self):
        return self.aggregate({"$set": {"k": {"$range": [0, 2000]}}}, {"$unwind": "$k"}, {"$group": {"_id": {"k": "$k", "s": "$s"}, "n": {"$sum": 1}}}, {"$sort": {"n": 1}}, {"$out": "spilled"},
                              collection="c0")


class Processor(Bombs):
    """Operations that would take any amount of time."""

    name = "processor"

    def bombs(self):
        return [self.loops, self.loops, self.regexes, self.joins, self.keys, self.elements, self.graph, self.diff]

    def loops(self):
        count = self.random.choice([500, 3000])
        loop = nested(self.random.choice([2, 3]), lambda x: {"$reduce": {"input": {"$range": [0, count]}, "initialValue": 0, "in": {"$add": ["$$value", x]}}}, 1)
        inner = self.random.choice([
            loop, {"$size": {"$map": {"input": {"$range": [0, 3_000_000]}, "in": {"$sqrt": "$$this"}}}},
            {"$size": {"$filter": {"input": {"$range": [0, 3_000_000]}, "cond": {"$in": ["$$this", {"$range": [0, 3000]}]}}}},
            {"$indexOfBytes": ["x" * 900_000, "x" * 400_000 + "y"]}, {"$size": {"$split": ["x" * 900_000, "x"]}},
            {"$setIsSubset": [{"$range": [0, 900_000]}, {"$range": [1, 900_000]}]},
        ])
        return self.somewhere({"$gt": [inner, -1]})

    def regexes(self):
        bad = self.random.choice([r"(x+x+)+y", r"^(a|b)*$", r"^(\w+\s?)*$", r"(.*)*z", r"(x*)*\1y", r"((x{1,50}){1,50}){1,50}q", r"(?:.*?,){11}P", "(x?){300}x{300}"])
        return self.random.choice([
            {"find": "c0", "filter": {"s": Regex(bad, "")}}, {"find": "large", "filter": {"s": {"$not": Regex(bad, "")}}},
            {"count": "c0", "query": {"s": {"$regex": bad, "$options": "i"}}}, {"find": "large", "filter": {"s": {"$in": [Regex(bad, "")] * 20}}},
            self.aggregate({"$project": {"m": {"$regexFindAll": {"input": "$s", "regex": bad}}}}, collection="large"),
            self.aggregate({"$project": {"m": {"$regexMatch": {"input": {"$concat": ["$s", "$s"]}, "regex": bad}}}}),
        ])

    def joins(self):
        never = {"$expr": {"$eq": [{"$add": ["$a", "$$q"]}, -1]}}
        return self.aggregate({"$lookup": {"from": "c0", "let": {"q": "$a"}, "pipeline": [{"$lookup": {"from": "c0", "pipeline": [{"$match": never}], "as": "y"}}], "as": "x"}},
                              {"$match": {"x": {"$size": 7}}})

    def graph(self):
        return self.aggregate({"$graphLookup": {"from": "c0", "startWith": "$a", "connectFromField": "b", "connectToField": "b", "as": "x"}}, {"$count": "n"})

    def keys(self):
        return {"createIndexes": "c0", "indexes": [{"key": {f"{p}": 1 for p in self.random.sample(["a", "b", "s", "n", "tags"], 3)}, "name": f"k{self.random.randrange(9)}"}]}

    def elements(self):
        deep = nested(20, lambda x: {"$elemMatch": {"$or": [x, {"$elemMatch": x}]}} if False else {"$or": [x, {"tags": {"$elemMatch": {"$gt": 1}}}]}, {"a": 1})
        return {"find": "c0", "filter": {"$nor": [deep] * 50}}

    def diff(self):
        return {"distinct": self.random.choice(["c0", "large", "giants"]), "key": self.random.choice(["a", "s", "tags", "e"]), "query": {"$where": "1"} if self.random.random() < 0.1 else {}}


class Writes(Attack):
    """Large writes: documents with very many keys, batches in flight, transactions without an end."""

    name = "writes"

    def step(self, connection):
        kind = self.random.choice([self.giant, self.giant, self.batch, self.transaction, self.grow, self.large])
        kind(connection)

    def limits(self):
        return self.random.choice([{}, {"maxTimeMS": 300}, {"maxTimeMS": 3000}])

    def giant(self, connection):
        """One document, very many keys of a unique index."""
        self.ask(connection, {"createIndexes": "giants", "indexes": [{"key": {"e": 1}, "name": "e", "unique": True}, {"key": {"f.g": 1, "h": 1}, "name": "f"}], "$db": "hostile"})
        first, count = self.random.randrange(1 << 40), self.random.choice([20_000, 200_000])
        shown = {"insert": "giants", "e": f"range({first}, +{count})"}
        document = {"e": list(range(first, first + count))} if self.random.random() < 0.6 else {"f": [{"g": n} for n in range(count // 4)], "h": first}
        self.ask(connection, {"insert": "giants", "documents": [document], "$db": "hostile", **self.limits()}, shown)
        if self.random.random() < 0.3:
            self.ask(connection, {"update": "giants", "updates": [{"q": {}, "u": {"$push": {"e": {"$each": list(range(1000))}}}, "multi": True}], "$db": "hostile", **self.limits()})
        if self.random.random() < 0.3:
            self.ask(connection, {"delete": "giants", "deletes": [{"q": {}, "limit": 0}], "$db": "hostile"})

    def batch(self, connection):
        count = self.random.choice([1000, 45])
        document = {"s": "x" * (40_000 if count == 1000 else 1_000_000)}
        self.ask(connection, {"insert": "batches", "documents": [document] * count, "$db": "hostile", **self.limits()}, {"insert": "batches", "documents": count})

    def transaction(self, connection):
        reply = self.ask(connection, {"startSession": 1, "$db": "admin"})
        common = {"lsid": {"id": reply["id"]["id"]}, "txnNumber": Int64(1), "autocommit": False}
        begin = {"startTransaction": True}
        for _ in range(self.random.choice([2, 10, 60])):
            reply = self.ask(connection, {"insert": "batches", "documents": [{"s": MEGABYTE}] * 30, "$db": "hostile", **common, **begin}, {"insert": "in a transaction", "documents": "30 MB"})
            begin = {}
            if not reply.get("ok"):
                break
        end = self.random.choice(["commitTransaction", "abortTransaction", None])
        if end:
            self.ask(connection, {end: 1, **common, "$db": "admin"})

    def grow(self, connection):
        self.ask(connection, {"update": "c2", "updates": [{"q": {"_id": "grows"}, "u": {"$push": {"all": MEGABYTE}}, "upsert": True}], "$db": "hostile"}, {"update": "c2", "$push": "1 MB"})
        self.ask(connection, {"update": "c2", "updates": [{"q": {"_id": "wide"}, "u": {"$set": {f"x.{self.random.randrange(1 << 31)}": 1}}, "upsert": True}], "$db": "hostile"})

    def large(self, connection):
        """Of what the bombs are made; there when it has been dropped."""
        for n in range(8):
            self.ask(connection, {"update": "large", "updates": [{"q": {"_id": n}, "u": {"a": n, "s": MEGABYTE}, "upsert": True}], "$db": "hostile"}, {"update": "large", "_id": n})
        documents = [{"a": n % 100, "b": n % 17, "tags": [n % 5, f"t{n % 3}"], "s": "x" * (n % 300), "n": n} for n in range(3000)]
        for collection in ("c0", "c1"):
            self.ask(connection, {"delete": collection, "deletes": [{"q": {}, "limit": 0}], "$db": "hostile"})
            self.ask(connection, {"insert": collection, "documents": documents, "$db": "hostile"}, {"insert": collection, "documents": 3000})
        time.sleep(0.05)


ATTACKS = [Memory, Processor, Writes]
