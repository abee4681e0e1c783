"""Changes of databases and collections through one router right after changes through another.

What a router believed before is never the reason of an error, nor of an answer: random steps through two routers in turn have the outcomes
that the same steps have through a single one.
"""

import os
import random

from pymongo.errors import OperationFailure

from checks import check

COLLECTIONS = ("plants", "herbs")


class Side:
    """A pair of databases, and the routers by which they are reached."""

    def __init__(self, name, config, routers):
        self.name, self.config, self.routers = name, config, routers

    def db(self, number):
        return f"{self.name}{number}"

    def home(self, number, kind):
        """The shard where a database lives, or the other one."""
        known = self.config.config.databases.find_one({"_id": self.db(number)})
        own = int(known["primary"][-1]) if known else 0
        return f"shard{own if kind == 'same' else 1 - own}"

    def outcome(self, router, step):
        try:
            return STEPS[step[0]](self, self.routers[router % len(self.routers)], *step[1:])
        except OperationFailure as error:
            return f"error {error.code}"


def ok(reply, *names):
    return {"ok": reply["ok"], **{name: reply.get(name) for name in names}}


def namespace(side, number, name):
    return f"{side.db(number)}.{name}"


def create(side, client, number, name, _):
    return ok(client[side.db(number)].command("create", name))


def insert(side, client, number, name, rng):
    reply = client[side.db(number)].command("insert", name, documents=[{"_id": at, "k": at} for at in range(5)], ordered=False)
    return ok(reply, "n"), [error["code"] for error in reply.get("writeErrors", [])]


def update(side, client, number, name, _):
    return ok(client[side.db(number)].command("update", name, updates=[{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]), "n", "nModified")


def drop(side, client, number, name, _):
    reply = client[side.db(number)].command("drop", name)
    return "dropped" if "nIndexesWas" in reply or "ns" in reply else "nothing"


def drop_database(side, client, number, _name, _):
    return ok(client[side.db(number)].command("dropDatabase"))


def rename(side, client, number, name, chance):
    other = COLLECTIONS[1 - COLLECTIONS.index(name)]
    return ok(client.admin.command("renameCollection", namespace(side, number, name), to=namespace(side, number, other), dropTarget=chance))


def shard_collection(side, client, number, name, chance):
    return ok(client.admin.command("shardCollection", namespace(side, number, name), key={"_id" if chance else "k": 1}))


def enable_sharding(side, client, number, _name, chance):
    home = side.home(number, "same" if chance else "other")
    return ok(client.admin.command("enableSharding", side.db(number), primaryShard=home))


def move_primary(side, client, number, _name, _):
    return ok(client.admin.command("movePrimary", side.db(number), to=side.home(number, "other")))


def move_collection(side, client, number, name, chance):
    home = side.home(number, "same" if chance else "other")
    return ok(client.admin.command("moveCollection", namespace(side, number, name), toShard=home))


def move_chunk(side, client, number, name, _):
    to = side.home(number, "other")
    return ok(client.admin.command("moveChunk", namespace(side, number, name), find={"_id": 1, "k": 1}, to=to))


def create_indexes(side, client, number, name, chance):
    key = "k" if chance else "n"
    index = {"key": {key: 1}, "name": f"{key}_1"}
    client[side.db(number)].command("createIndexes", name, indexes=[index])
    return "made"


def drop_indexes(side, client, number, name, chance):
    return ok(client[side.db(number)].command("dropIndexes", name, index="n_1"))


def coll_mod(side, client, number, name, _):
    return ok(client[side.db(number)].command("collMod", name, validationLevel="strict"))


def count(side, client, number, name, _):
    db = client[side.db(number)]
    return len(list(db[name].find({}))), db[name].count_documents({}), db.command("count", name)["n"]


def lists(side, client, number, name, _):
    db = client[side.db(number)]
    found = sorted(entry["name"] for entry in db.command("listCollections")["cursor"]["firstBatch"])
    try:
        indexes = sorted(entry["name"] for entry in db.command("listIndexes", name)["cursor"]["firstBatch"])
    except OperationFailure as error:
        indexes = error.code
    return found, indexes, side.db(number) in client.list_database_names()


STEPS = {step.__name__: step for step in (
    create, insert, update, drop, drop_database, rename, shard_collection, enable_sharding, move_primary, move_collection, move_chunk,
    create_indexes, drop_indexes, coll_mod, count, lists)}
# Moves take their time.
WEIGHTS = {"move_primary": 1, "move_collection": 1, "drop_database": 4, "count": 4, "lists": 3, "shard_collection": 4}


@check
def changes_through_routers_in_turn(cluster):
    seeds = int(os.environ.get("SHEAF_SEEDS", 3))
    first = int(os.environ.get("SHEAF_SEED", 1))
    names = list(STEPS)
    weights = [WEIGHTS.get(name, 2) for name in names]
    with cluster.client(0) as one, cluster.client(1) as other, cluster.config.direct(0) as config:
        for seed in range(first, first + seeds):
            rng = random.Random(seed)
            both, single = Side("inturn", config, [one, other]), Side("byone", config, [one])
            told = []
            for at in range(60):
                step = (rng.choices(names, weights)[0], rng.randrange(2), rng.choice(COLLECTIONS), rng.random() < 0.5)
                router = rng.randrange(2)
                expected, found = single.outcome(0, step), both.outcome(router, step)
                told.append(f"  {at} router {router} {step}: {found}, expected {expected}")
                assert found == expected, f"seed {seed}\n" + "\n".join(told[-12:])
            for side in (both, single):
                for number in range(2):
                    one.drop_database(side.db(number))
