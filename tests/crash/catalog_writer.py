"""A writer that changes the catalog and the files in every way there is, with a model of all that it has.

The model is a chain of states. A command leads from one state to the next, through those between that a crash may leave; what
is there afterwards must be one of them. After a power loss it may be an earlier one, but none before the last journaled.
"""

from pymongo.errors import OperationFailure

from writers import JOURNALED, PLAIN, Writer

NAMES = [f"k{n}" for n in range(5)]
TEMPORARY = 200


def collection(documents=(), capped=False, indexes=(), validator=False):
    return {"documents": dict(documents), "capped": capped, "indexes": frozenset(indexes), "validator": validator, "view": None}


def view(of):
    return {"documents": {}, "capped": False, "indexes": frozenset(), "validator": False, "view": of}


class Step:
    """The states that a command leads through; with `mixed` each document of a collection may be as before or as after."""

    def __init__(self, states, mixed=None):
        self.states, self.mixed = states, mixed


class Catalog(Writer):
    """Two databases of its own, with some small collections, views and indexes."""

    def __init__(self, *args):
        super().__init__(*args)
        self.databases = (f"torture_{self.name}", f"torture_{self.name}_other")
        # All steps since the last that is known to last, oldest first; each state is {(database, name): what it is}.
        self.steps = [Step([{}])]
        self.version = self.durable = self.frozen = 0
        self.number = 0
        self.kinds = {}

    # --- commands ---

    def step(self):
        state = self.steps[-1].states[-1]
        kind = self.random.choice([
            self.insert, self.insert, self.insert, self.update, self.delete, self.create, self.create_view, self.drop, self.rename, self.rename,
            self.rename_across, self.convert, self.clone, self.out, self.out, self.merge, self.index, self.index, self.drop_index, self.modify,
            self.drop_database, self.maintain, self.maintain, self.maintain,
        ])
        made = kind(state)
        if made is None:
            return
        database, command, step = made
        concern = JOURNALED if self.random.random() < 0.3 else PLAIN
        self.pending = step
        self.sent = f"{kind.__name__} {command}"[:300]
        admin = next(iter(command)) == "renameCollection"
        try:
            self.client["admin" if admin else database].command({**command, "writeConcern": concern.document})
        except OperationFailure as error:
            raise OperationFailure(f"{self.sent}: {error}", error.code, error.details) from None
        self.pending = None
        self.kinds[kind.__name__] = self.kinds.get(kind.__name__, 0) + 1
        self.steps.append(step)
        self.version += 1
        if concern is JOURNALED:
            self.durable = self.version

    def some(self, state, what=lambda entry: entry["view"] is None):
        """One of the names whose entry is such."""
        names = [key for key, entry in sorted(state.items()) if what(entry)]
        return self.random.choice(names) if names else None

    def free(self, state, database=None):
        database = database or self.random.choice(self.databases)
        names = [(database, name) for name in NAMES if (database, name) not in state]
        return self.random.choice(names) if names else None

    def fresh(self, count):
        first = self.number
        self.number += count
        return {n: {"_id": n, "v": n % 7, "text": "x" * (n % 200)} for n in range(first, self.number)}

    def insert(self, state):
        where = self.some(state)
        where = where if where and self.random.random() < 0.8 else self.free(state)
        if where is None:
            return None
        documents = self.fresh(self.random.choice([1, 1, 30]))
        old = state.get(where)
        if old and len(old["documents"]) > TEMPORARY:
            return None
        entry = {**old, "documents": {**old["documents"], **documents}} if old else collection(documents)
        made = {**state, where: entry}
        states = [state, made]
        if not old:
            # The collection first.
            states = [state, {**state, where: collection()}, made]
        return where[0], {"insert": where[1], "documents": list(documents.values())}, Step(states, where)

    def update(self, state):
        where = self.some(state)
        if where is None:
            return None
        self.number += 1
        entry = state[where]
        changed = {i: {**d, "v": self.number} if d["v"] % 2 else d for i, d in entry["documents"].items()}
        command = {"update": where[1], "updates": [{"q": {"v": {"$mod": [2, 1]}}, "u": {"$set": {"v": self.number}}, "multi": True}]}
        return where[0], command, Step([state, {**state, where: {**entry, "documents": changed}}], where)

    def delete(self, state):
        where = self.some(state)
        if where is None:
            return None
        left = {i: d for i, d in state[where]["documents"].items() if d["v"] != 3}
        command = {"delete": where[1], "deletes": [{"q": {"v": 3}, "limit": 0}]}
        return where[0], command, Step([state, {**state, where: {**state[where], "documents": left}}], where)

    def create(self, state):
        where = self.free(state)
        if where is None:
            return None
        capped = self.random.random() < 0.3
        options = {"capped": True, "size": 10_000_000} if capped else {}
        return where[0], {"create": where[1], **options}, Step([state, {**state, where: collection(capped=capped)}])

    def create_view(self, state):
        where = self.free(state)
        if where is None:
            return None
        of = at = self.random.choice(NAMES)
        while at is not None and at != where[1]:
            at = state.get((where[0], at), {}).get("view")
        if at is not None:
            # It would be a view on itself.
            return None
        return where[0], {"create": where[1], "viewOn": of, "pipeline": []}, Step([state, {**state, where: view(of)}])

    def drop(self, state):
        where = self.some(state, lambda _: True)
        if where is None or self.random.random() < 0.4:
            return None
        return where[0], {"drop": where[1]}, Step([state, without(state, where)])

    def rename(self, state):
        where = self.some(state)
        if where is None:
            return None
        target = (where[0], self.random.choice(NAMES))
        if target == where or (target in state and state[target]["view"] is not None):
            return None
        command = {"renameCollection": ".".join(where), "to": ".".join(target), "dropTarget": target in state}
        return where[0], command, Step([state, {**without(state, where), target: state[where]}])

    def rename_across(self, state):
        where = self.some(state)
        if where is None:
            return None
        target = (self.databases[where[0] == self.databases[0]], self.random.choice(NAMES))
        if target in state and state[target]["view"] is not None:
            return None
        both = {**state, target: state[where]}
        command = {"renameCollection": ".".join(where), "to": ".".join(target), "dropTarget": target in state}
        # Never is the one gone before the other one is there.
        return where[0], command, Step([state, both, without(both, where)])

    def convert(self, state):
        where = self.some(state, lambda entry: entry["view"] is None and not entry["validator"])
        if where is None:
            return None
        entry = {**state[where], "capped": True, "indexes": frozenset()}
        return where[0], {"convertToCapped": where[1], "size": 10_000_000}, Step([state, {**state, where: entry}])

    def clone(self, state):
        where = self.some(state, lambda entry: entry["view"] is None and not entry["validator"])
        target = self.free(state, where[0]) if where else None
        if target is None:
            return None
        entry = collection(state[where]["documents"], capped=True)
        command = {"cloneCollectionAsCapped": where[1], "toCollection": target[1], "size": 10_000_000}
        return where[0], command, Step([state, {**state, target: collection(capped=True)}, {**state, target: entry}], target)

    def out(self, state):
        where = self.some(state)
        if where is None:
            return None
        target = (self.random.choice(self.databases), self.random.choice(NAMES))
        old = state.get(target)
        if old and (old["view"] is not None or old["capped"] or old["validator"]):
            return None
        entry = collection(state[where]["documents"], indexes=old["indexes"] if old else ())
        stage = {"$out": {"db": target[0], "coll": target[1]}}
        return where[0], {"aggregate": where[1], "pipeline": [stage], "cursor": {}}, Step([state, {**state, target: entry}])

    def merge(self, state):
        where = self.some(state)
        target = self.some(state, lambda entry: entry["view"] is None and not entry["capped"])
        if where is None or target is None or where == target:
            return None
        documents = {**state[target]["documents"], **state[where]["documents"]}
        if len(documents) > 3 * TEMPORARY:
            return None
        stage = {"$merge": {"into": {"db": target[0], "coll": target[1]}, "whenMatched": "replace"}}
        made = {**state, target: {**state[target], "documents": documents}}
        return where[0], {"aggregate": where[1], "pipeline": [stage], "cursor": {}}, Step([state, made], target)

    def index(self, state):
        where = self.some(state)
        name = self.random.choice(["v", "text"])
        if where is None or name in state[where]["indexes"]:
            return None
        entry = {**state[where], "indexes": state[where]["indexes"] | {name}}
        return where[0], {"createIndexes": where[1], "indexes": [{"key": {name: 1}, "name": name}]}, Step([state, {**state, where: entry}])

    def drop_index(self, state):
        where = self.some(state, lambda entry: entry["indexes"])
        if where is None:
            return None
        return where[0], {"dropIndexes": where[1], "index": "*"}, Step([state, {**state, where: {**state[where], "indexes": frozenset()}}])

    def modify(self, state):
        where = self.some(state, lambda entry: entry["view"] is None and not entry["capped"])
        if where is None:
            return None
        validator = not state[where]["validator"]
        command = {"collMod": where[1], "validator": {"_id": {"$gte": 0}} if validator else {}}
        return where[0], command, Step([state, {**state, where: {**state[where], "validator": validator}}])

    def drop_database(self, state):
        if self.random.random() < 0.7:
            return None
        database = self.random.choice(self.databases)
        left = {key: entry for key, entry in state.items() if key[0] != database}
        return database, {"dropDatabase": 1}, Step([state, left], database)

    def maintain(self, state):
        """Commands that change files, but nothing that a client sees."""
        where = self.some(state)
        if where is None:
            return None
        name = where[1]
        command = self.random.choice([
            {"compact": name}, {"validate": name, "full": True}, {"validate": name, "repair": True}, {"reIndex": name}, {"fsync": 1},
        ])
        if "fsync" in command:
            self.fsync()
            return None
        self.client[where[0]].command(command)
        what = " ".join([next(iter(command)), *(["repair"] if "repair" in command else [])])
        self.kinds[what] = self.kinds.get(what, 0) + 1
        return None

    def fsync(self):
        """Sometimes with a lock, under which nobody writes for a moment."""
        admin = self.client.admin
        if self.random.random() < 0.5:
            admin.command("fsync")
        else:
            admin.command("fsync", lock=True)
            admin.command("fsyncUnlock")
        self.kinds["fsync"] = self.kinds.get("fsync", 0) + 1

    # --- checks ---

    def freeze(self):
        self.frozen = self.durable

    def observed(self):
        """What is there now, in the form of a state."""
        found, wrong = {}, []
        for database in self.databases:
            db = self.client[database]
            for listed in db.command("listCollections", cursor={"batchSize": 1000})["cursor"]["firstBatch"]:
                name, options = listed["name"], listed["options"]
                if name.startswith("system."):
                    continue
                if name not in NAMES:
                    wrong.append(f"{self.name}: a collection that nobody made: {database}.{name}")
                    continue
                if listed["type"] == "view":
                    found[database, name] = view(options["viewOn"])
                    continue
                documents = {d["_id"]: d for d in db[name].find()}
                indexes = {i["name"] for i in db[name].list_indexes()} - {"_id_"}
                found[database, name] = collection(documents, bool(options.get("capped")), indexes, bool(options.get("validator")))
                report = db.command("validate", name, full=True)
                if not report["valid"] or report.get("errors"):
                    wrong.append(f"{self.name}: validate {database}.{name}: {report.get('errors')}")
        return found, wrong

    def check(self, power_loss):
        found, wrong = self.observed()
        steps = self.steps[-(self.version - self.frozen) - 1:] if power_loss else self.steps[-1:]
        steps = [*steps, *([self.pending] if self.pending else [])]
        # The newest that fits.
        candidates = [Step([steps[0].states[-1]]), *steps[1:]]
        if not any(fits(found, step) for step in reversed(candidates)):
            wrong.append(f"{self.name}: none of {len(candidates)} states is there; the last command: {getattr(self, 'sent', '')}; "
                         f"pending: {bool(self.pending)}; {difference(found, candidates[-1].states[-1])}")
        self.steps = [Step([found])]
        self.pending = None
        self.version = self.durable = self.frozen = 0
        return wrong


def without(state, key):
    return {k: entry for k, entry in state.items() if k != key}


def fits(found, step):
    """Whether what is there is one of the step's states, or between the first and the last where that may be."""
    if any(found == state for state in step.states):
        return True
    if step.mixed is None:
        return False
    before, after = step.states[0], step.states[-1]
    if isinstance(step.mixed, str):
        # A database: each collection is there as before, or gone.
        return all(found.get(key) in (before.get(key), after.get(key)) for key in {*found, *before})
    there = found.get(step.mixed)
    if there is None or without(found, step.mixed) != without(after, step.mixed):
        return False
    old = before.get(step.mixed, collection())["documents"]
    new = after[step.mixed]["documents"]
    same = {**there, "documents": {}} == {**after[step.mixed], "documents": {}}
    return same and all(there["documents"].get(i) in (old.get(i), new.get(i)) for i in {*there["documents"], *old, *new})


def difference(found, expected):
    """Something short about two states that differ."""
    parts = []
    for key in sorted({*found, *expected}):
        a, b = found.get(key), expected.get(key)
        if a == b:
            continue
        if a is None or b is None:
            parts.append(f"{key} is {'missing' if a is None else 'there'}")
            continue
        fields = {f: (a[f], b[f]) for f in a if f != "documents" and a[f] != b[f]}
        documents = [i for i in {*a["documents"], *b["documents"]} if a["documents"].get(i) != b["documents"].get(i)]
        parts.append(f"{key}: {fields} {len(documents)} documents differ, e.g. {sorted(documents)[:5]} of {len(a['documents'])}/{len(b['documents'])}")
    return "; ".join(parts)[:1200]
