"""Updates after which a document is another shard's, beside moves and shards that know more than the router."""

import threading

import pymongo
from bson import MaxKey, MinKey
from pymongo.errors import DuplicateKeyError, PyMongoError

from checks import check, refused
from cluster import eventually
from moves import move

STALE_CONFIG = 13388


def two_shards(client, db):
    """From 0 on the collection is the first shard's, where documents 0 to 39 are, below the second's."""
    client.admin.command("enableSharding", db, primaryShard="shard0")
    client.admin.command("shardCollection", f"{db}.plants", key={"n": 1})
    client.admin.command("split", f"{db}.plants", middle={"n": 0})
    client.admin.command({"moveRange": f"{db}.plants", "min": {"n": MinKey()}, "max": {"n": 0}, "toShard": "shard1"})
    client[db].plants.insert_many([{"_id": at, "n": at} for at in range(40)])
    return client[db].plants


def fail(cluster, shard, command, **how):
    with cluster.shards[shard].direct(cluster.shards[shard].primary()) as direct:
        data = {"failCommands": [command], "failInternalCommands": True, **how}
        direct.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})


class Held:
    """The first shard's range goes to the second one, which has all documents and is not told at once what has changed since."""

    def __init__(self, cluster, db, millis=3000):
        self.cluster, self.db, self.error = cluster, db, None
        fail(cluster, 0, "changesOfRange", blockConnection=True, blockTimeMS=millis)
        self.thread = threading.Thread(target=self.move)

    def __enter__(self):
        self.thread.start()
        with self.cluster.shards[1].direct(self.cluster.shards[1].primary()) as second:
            # A count of documents would leave out what is not the shard's yet.
            eventually(lambda: second[self.db].command("collStats", "plants")["count"] >= 40, "documents have come")

    def move(self):
        try:
            with self.cluster.client() as client:
                move(client, f"{self.db}.plants", {"n": 0}, {"n": MaxKey()}, "shard1")
        except PyMongoError as error:
            self.error = error

    def __exit__(self, *_):
        self.thread.join()


@check
def a_shard_that_sends_a_document_away_has_done_nothing_yet(cluster):
    """One shard says that the document is to be another's, the other that the router knows too little: the first is asked again."""
    with cluster.client(0) as client:
        plants = two_shards(client, "leaving")
        for ordered, at in ((True, 1), (False, 2)):
            fail(cluster, 1, "update", errorCode=STALE_CONFIG)
            updates = [pymongo.UpdateOne({"_id": at}, {"$set": {"n": -at}}) for at in (at, at + 10)]
            done = plants.bulk_write(updates, ordered=ordered)
            assert (done.matched_count, done.modified_count) == (2, 2), (ordered, done)
        assert plants.count_documents({"n": {"$lt": 0}}) == 4
        seen = (plants.count_documents({}), sorted((d['_id'], d['n']) for d in plants.find()))
        assert seen[0] == 40, seen


@check
def a_document_leaves_for_where_it_is_received(cluster):
    """What the other shard has received of the range is not in the way of the document itself."""
    with cluster.client(0) as client:
        plants = two_shards(client, "received")
        held = Held(cluster, "received")
        with held:
            assert plants.update_one({"_id": 5}, {"$set": {"n": -5}}).modified_count == 1
            shown = plants.find_one_and_update({"_id": 6}, {"$set": {"n": -6}})
            assert shown == {"_id": 6, "n": 6}, shown
        assert held.error is None, held.error
        assert sorted(d["n"] for d in plants.find({"_id": {"$in": [5, 6]}})) == [-6, -5]
        assert plants.count_documents({}) == 40


@check
def what_has_left_is_in_nobody_s_way(cluster):
    """What a shard still has of a range that it has given away, for minutes, gives way to the document itself, or to another of its `_id`."""
    with cluster.client(0) as client:
        plants = two_shards(client, "returning")
        client.admin.command("split", "returning.plants", middle={"n": 20})
        move(client, "returning.plants", {"n": 20}, {"n": MaxKey()}, "shard1")
        assert plants.update_one({"_id": 25}, {"$set": {"n": 5}}).modified_count == 1
        shown = plants.find_one_and_update({"_id": 26}, {"$set": {"n": 6}})
        assert shown == {"_id": 26, "n": 26}, shown
        assert plants.delete_one({"_id": 27}).deleted_count == 1

        def inserted():
            try:
                return plants.insert_one({"_id": 27, "n": 7}).acknowledged
            except DuplicateKeyError:
                return False

        eventually(inserted, "the remains make room")
        assert sorted((d["_id"], d["n"]) for d in plants.find({"_id": {"$in": [25, 26, 27]}})) == [(25, 5), (26, 6), (27, 7)]
        assert plants.count_documents({}) == 40
        for at in (1, 21):
            try:
                plants.insert_one({"_id": at, "n": at})
                raise AssertionError(f"{at} is there twice")
            except DuplicateKeyError:
                pass


@check
def what_is_in_the_way_of_a_move_for_a_moment(cluster):
    """A document of the recipient's own has the `_id` of one that it receives: the move says so at its end, or waits for it to go."""
    with cluster.client(0) as client:
        for_good = two_shards(client, "doubles")
        for_good.insert_many([{"_id": 7, "n": -7}, {"_id": 8, "n": -8}])
        command = {"moveRange": "doubles.plants", "min": {"n": 0}, "toShard": "shard1"}
        error = str(refused(117, lambda: client.admin.command(command)))
        assert "E11000" in error and ("_id: 7" in error or "_id: 8" in error), error
        assert for_good.count_documents({}) == 42
        for_a_moment = two_shards(client, "doubles_once")
        for_a_moment.insert_many([{"_id": 7, "n": -7}, {"_id": 8, "n": -8}])
        held = Held(cluster, "doubles_once")
        with held:
            assert for_a_moment.delete_many({"n": {"$lt": 0}}).deleted_count == 2
        assert held.error is None, held.error
        assert sorted(document["_id"] for document in for_a_moment.find()) == list(range(40))


@check
def a_document_that_goes_to_and_fro_is_found_and_changed_once(cluster):
    """Updates of one document, by `_id` and by another field, beside somebody who has it change its shard again and again."""
    with cluster.client(0) as client:
        plants = two_shards(client, "to_and_fro")
        plants.update_many({}, {"$set": {"done": [], "label": "x"}})
        over, failures, counts = threading.Event(), [], []

        def guarded(work):
            try:
                work()
            except Exception as error:
                failures.append(error)

        def change(at, by):
            with cluster.client(at % 2, retryWrites=at < 2) as own:
                for number in range(60):
                    done = own.to_and_fro.plants.update_one(by, {"$push": {"done": f"{at} {number}"}})
                    counts.append(done.modified_count)

        def send():
            with cluster.client(1) as own:
                n = 1
                while not over.is_set():
                    own.to_and_fro.plants.update_one({"_id": 1, "n": n}, {"$set": {"n": -n}})
                    n = -n

        by_label = {"label": "y"}
        plants.update_one({"_id": 1, "n": 1}, {"$set": by_label})
        work = [lambda at=at: change(at, {"_id": 1} if at % 2 else by_label) for at in range(4)]
        threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
        sender = threading.Thread(target=guarded, args=(send,))
        for thread in [*threads, sender]:
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        sender.join()
        assert not failures, failures
        done = plants.find_one({"_id": 1})["done"]
        assert counts == [1] * 240 and len(done) == len(set(done)) == 240, (sum(counts), len(done), len(set(done)))
