"""Inserts into a collection that is copied and exchanged all the time: what was acknowledged is there."""

from pymongo.errors import OperationFailure

from writers import Sequence, Writer

NAME = "swapped"
# Nothing leaves the capped collection for want of room.
ROOM = 200_000_000
# Who writes while the collection is exchanged may be told that it has gone, and must have lost nothing.
EXCHANGED = {26, 112, 175, 211, 215, 246, 276, 11602}


class Swapped(Sequence):
    """Inserts numbered documents, each once; those that were refused are known not to be there."""

    def setup(self):
        self.kinds = {"refused inserts": 0}
        self.acknowledged_ids, self.unknown = set(), set()
        self.journaled, self.frozen_ids = 0, 0
        self.order = []

    def step(self):
        concern, identity = self.concern(), self.attempted + 1
        self.attempted = identity
        self.unknown.add(identity)
        try:
            self.db.get_collection(NAME, write_concern=concern).insert_one({"_id": identity, "w": self.name, "text": "x" * (identity % 200)})
        except OperationFailure as error:
            if error.code not in EXCHANGED:
                raise
            self.kinds["refused inserts"] += 1
            self.unknown.discard(identity)
            return
        self.unknown.discard(identity)
        self.order.append(identity)
        if concern.document.get("j"):
            self.journaled = len(self.order)

    def freeze(self):
        self.frozen_ids = self.journaled

    def forget(self):
        self.attempted = -1
        self.unknown, self.order = set(), []
        self.journaled = self.frozen_ids = 0

    def check(self, power_loss):
        present = {d["_id"] for d in self.db[NAME].find({}, {"_id": 1})}
        promised = self.order[:self.frozen_ids] if power_loss else self.order
        wrong = []
        if lost := set(promised) - present:
            wrong.append(f"{self.name}: {len(lost)} acknowledged inserts of {len(promised)} are lost beside an exchange: {sorted(lost)[:8]}")
        if more := present - set(self.order) - self.unknown:
            wrong.append(f"{self.name}: {len(more)} that were refused or never sent are there: {sorted(more)[:8]}")
        shown = [identity in present for identity in self.order]
        if shown != sorted(shown, reverse=True):
            wrong.append(f"{self.name}: a later insert is there, but not an earlier one")
        self.order = sorted(present)
        self.unknown = set()
        self.journaled = self.frozen_ids = len(self.order)
        return wrong


class Swapper(Writer):
    """Exchanges the collection, and does whatever else changes its files."""

    def __init__(self, *args):
        super().__init__(*args)
        self.kinds = {}

    def step(self):
        count = self.random.randrange(8)
        if count < 4:
            made = {"convertToCapped": NAME, "size": ROOM}
        else:
            made = self.random.choice([
                {"compact": NAME}, {"reIndex": NAME}, {"createIndexes": NAME, "indexes": [{"key": {"w": 1, "text": 1}, "name": "w"}]},
                {"dropIndexes": NAME, "index": "*"}, {"validate": NAME, "full": True},
                {"aggregate": NAME, "pipeline": [{"$out": "copied"}], "cursor": {}}, {"cloneCollectionAsCapped": NAME, "toCollection": "cloned", "size": ROOM},
                {"drop": "cloned"},
            ])
        name = next(iter(made))
        try:
            self.db.command(made)
        except OperationFailure as error:
            # It is not there yet, it is there already, or another one came in between.
            if error.code not in EXCHANGED | {48, 27}:
                raise
            name += ", refused"
        self.kinds[name] = self.kinds.get(name, 0) + 1

    def check(self, power_loss):
        names = [name for name in self.db.list_collection_names() if "tmp" in name]
        return [f"left behind by an exchange: {names}"] if names else []
