"""Clients of the torture of a set that change the catalog and the files in every way there is.

They are promised nothing but that all members have the same in the end; only what a majority has acknowledged stays, also in a
collection that is copied and exchanged meanwhile.
"""

import time

from set_writers import DATABASE, MAJORITY, Client, Inserts

OTHER = f"{DATABASE}_other"
SWAPPED = "swapped"
# Nothing leaves the capped collection for want of room.
ROOM = 200_000_000


class Swapped(Inserts):
    """Inserts into the collection that is exchanged."""

    collection = SWAPPED

    def __init__(self, *args):
        super().__init__("majority", *args)
        self.writes = self.db.get_collection(SWAPPED, write_concern=MAJORITY)


class Catalog(Client):
    """One command after another on a few names in two databases."""

    def __init__(self, *args):
        super().__init__(*args)
        self.kinds = {}

    def step(self):
        name, other = self.random.sample([f"c{n}" for n in range(5)], 2)
        database, second = self.random.sample([DATABASE, OTHER], 2)
        documents = [{"_id": n, "v": self.random.randrange(9), "text": "x" * self.random.randrange(200)} for n in range(60)]
        into = {"db": second, "coll": other}
        made = self.random.choice([
            {"insert": name, "documents": documents, "ordered": False}, {"insert": name, "documents": documents, "ordered": False},
            {"update": name, "updates": [{"q": {"v": 3}, "u": {"$inc": {"v": 1}}, "multi": True}]}, {"delete": name, "deletes": [{"q": {"v": 5}, "limit": 0}]},
            {"create": name, "capped": True, "size": 50_000}, {"create": name, "viewOn": other, "pipeline": []}, {"drop": name},
            {"convertToCapped": name, "size": 100_000}, {"convertToCapped": SWAPPED, "size": ROOM}, {"convertToCapped": SWAPPED, "size": ROOM},
            {"cloneCollectionAsCapped": name, "toCollection": other, "size": 100_000}, {"compact": name, "force": True}, {"reIndex": name},
            {"renameCollection": f"{database}.{name}", "to": f"{database}.{other}", "dropTarget": self.random.random() < 0.7},
            {"renameCollection": f"{database}.{name}", "to": f"{second}.{other}", "dropTarget": self.random.random() < 0.7},
            {"aggregate": name, "pipeline": [{"$out": into}], "cursor": {}}, {"aggregate": name, "pipeline": [{"$merge": {"into": into}}], "cursor": {}},
            {"createIndexes": name, "indexes": [{"key": {"v": 1, "text": -1}, "name": "v"}]}, {"createIndexes": SWAPPED, "indexes": [{"key": {"a": 1}, "name": "a"}]},
            {"createIndexes": name, "indexes": [{"key": {"text": 1}, "name": "t", "unique": True}]}, {"dropIndexes": name, "index": "*"},
            {"collMod": name, "validator": {"v": {"$gte": 0}}}, {"collMod": name, "index": {"name": "v", "hidden": True}},
            {"collMod": name, "index": {"name": "v", "prepareUnique": True}}, {"validate": name, "full": True}, {"dropDatabase": 1, "$db": OTHER},
            {"replSetResizeOplog": 1, "size": self.random.choice([990.0, 1500.0]), "$db": "admin"}, {"fsync": 1, "lock": True, "$db": "admin"},
        ])
        where = made.pop("$db", "admin" if "renameCollection" in made else database)
        db = self.client[where]
        kind = next(iter(made))
        try:
            db.command(made)
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        finally:
            if kind == "fsync":
                # On whoever is asked now: a member that was killed has forgotten its locks.
                db.command("fsyncUnlock")
        time.sleep(0.01)
