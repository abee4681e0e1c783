"""A primary, a secondary that is away, and an arbiter: nothing can be committed, and `w: 1` writes go on."""

import shutil

import bson
from pymongo import WriteConcern
from pymongo.errors import ExecutionTimeout, PyMongoError
from pymongo.read_concern import ReadConcern

from members import PATIENCE, ReplicaSet, eventually

MAJORITY = WriteConcern(w="majority", wtimeout=120_000)
# Memtables may take 8 MB with this; so much is written that every write would wait for ever if nothing were flushed.
SMALL = ["--cacheSizeGB", "0.032", "--oplogSize", "990"]
TEXT = "x" * 50_000
MANY = 800


class Standing(ReplicaSet):
    """Such a set; member 0 leads, member 1 follows."""

    def __init__(self):
        super().__init__(({"priority": 2}, {}, {"arbiterOnly": True}), args=SMALL)

    def start(self):
        super().start()
        eventually(lambda: self.primary() == 0, "the lead of member 0")

    def copies(self, at=0):
        """The stable copies of a member."""
        folder = self.servers[at].dbpath / "stable"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def fill(self, first):
        """As many writes as have no room in memory, each acknowledged by the primary."""
        with self.direct(0, socketTimeoutMS=PATIENCE * 1000) as client:
            c = client.t.get_collection("c", write_concern=WriteConcern(w=1))
            for at in range(first, first + MANY, 20):
                c.insert_many([{"_id": number, "text": TEXT} for number in range(at, at + 20)])
            # What was there is changed and removed, too.
            c.update_one({"_id": "kept"}, {"$set": {"changed": first}})
            c.delete_one({"_id": f"removed {first}"})

    def begin(self):
        with self.client() as client:
            c = client.t.get_collection("c", write_concern=MAJORITY)
            c.insert_many([{"_id": "kept"}, *({"_id": f"removed {n * MANY}"} for n in range(3))])
        # The sessions' collection comes by itself; its write is to be no part of what follows.
        eventually(lambda: not self.copies(), "a set at rest")

    def equal(self):
        """Both members with data hold the same, and all of it is committed."""

        def hashes(at):
            try:
                with self.direct(at) as client:
                    return client.t.command("dbHash")["collections"]
            except PyMongoError:
                return at

        with self.client() as client:
            client.t.get_collection("marks", write_concern=WriteConcern(w=2, wtimeout=PATIENCE * 1000)).insert_one({})
        eventually(lambda: hashes(0) == hashes(1), "equal data")


def writes_go_on_while_only_the_arbiter_is_there():
    with Standing() as members:
        members.begin()
        members.servers[1].kill()
        members.fill(0)
        assert members.copies(), "what was committed is kept"
        assert "the set's commit point stands still" in members.servers[0].log_path.read_text()
        with members.direct(0) as client:
            assert client.t.c.count_documents({}) == MANY + 3
            # Majority readers see what a majority has.
            committed = client.t.get_collection("c", read_concern=ReadConcern("majority"))
            assert committed.count_documents({}) == 4
            assert "changed" not in committed.find_one({"_id": "kept"})
            client.admin.command("fsync")
        # A crash, and the same again. What the files hold is more than what a majority has.
        members.servers[0].kill()
        members.servers[0].start()
        eventually(lambda: members.primary() == 0, "the lead again")
        with members.direct(0) as client:
            assert client.t.c.count_documents({}) == MANY + 3
            try:
                committed = client.t.get_collection("c", read_concern=ReadConcern("majority"))
                found = committed.count_documents({}, maxTimeMS=300)
                raise AssertionError(f"{found} documents were read with read concern majority, and nothing is known to be committed")
            except ExecutionTimeout as error:
                assert error.code == 50, error
        members.fill(MANY)
        assert members.copies()
        # A clean end as well.
        members.servers[0].stop()
        members.servers[0].start()
        eventually(lambda: members.primary() == 0, "the lead once more")
        members.fill(2 * MANY)
        members.servers[1].start()
        members.equal()
        eventually(lambda: not members.copies(), "the end of the copies")
        with members.client() as client:
            committed = client.t.get_collection("c", read_concern=ReadConcern("majority"))
            eventually(lambda: committed.count_documents({}) == 3 * MANY + 1, "everything committed")


def what_the_secondary_never_got_is_rolled_back():
    with Standing() as members:
        members.begin()
        members.servers[1].kill()
        members.fill(0)
        assert members.copies()
        members.servers[0].kill()
        members.servers[1].start()
        members.wait_for(lambda states: states[1] == "PRIMARY")
        with members.direct(1) as client:
            assert client.t.c.count_documents({}) == 4
            client.t.get_collection("c", write_concern=WriteConcern(w=1)).insert_one({"_id": "new"})
        members.servers[0].start()
        members.wait_for(lambda states: states.count("PRIMARY") == 1 and None not in states)
        members.equal()
        with members.direct(0) as client:
            assert client.t.c.count_documents({}) == 5
            assert client.t.c.find_one({"_id": "kept"}) == {"_id": "kept"}
            assert client.t.validate_collection("c", full=True)["valid"]
        files = list((members.servers[0].dbpath / "rollback").glob("*/removed.*.bson"))
        lost = {str(document["_id"]): document for file in files for document in bson.decode_all(file.read_bytes())}
        assert {str(number) for number in range(MANY)} <= set(lost), sorted(lost)[:10]
        assert lost["kept"]["changed"] == 0, lost["kept"]
        eventually(lambda: not members.copies(), "the end of the copies")
        assert not (members.servers[0].dbpath / "install.stable").exists()


def a_secondary_that_lost_everything_comes_back():
    """It is the only one with whom anything can be committed, so what it copies is older than the newest write."""
    with Standing() as members:
        members.begin()
        lost = members.servers[1]
        lost.kill()
        members.fill(0)
        for item in lost.dbpath.iterdir():
            if item.is_dir():
                shutil.rmtree(item)
            else:
                item.unlink()
        lost.start()
        members.wait_for(lambda states: states[:2] == ["PRIMARY", "SECONDARY"])
        members.equal()
        eventually(lambda: not members.copies(), "the end of the copies")


CHECKS = [
    writes_go_on_while_only_the_arbiter_is_there, what_the_secondary_never_got_is_rolled_back,
    a_secondary_that_lost_everything_comes_back,
]
