"""What all attacks have in common: a process of its own, a seed, and a note of its last requests that outlives everything."""

import mmap
import multiprocessing
import os
import pathlib
import random
import time

import bson

import wire
from wire import Connection, Gone

SLOTS, SLOT_BYTES = 12, 600
# A reply that takes longer is waited for no more: the connection is closed, and the server has to notice.
PATIENCE = 20


class Notes:
    """The last requests of an attack, in a file that several processes see."""

    def __init__(self, path):
        if not path.exists():
            path.write_bytes(bytes(SLOTS * SLOT_BYTES))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), SLOTS * SLOT_BYTES)
        self.count = 0

    def add(self, text):
        line = f"{time.time():.3f} {text}".encode(errors="replace")[:SLOT_BYTES - 1]
        at = self.count % SLOTS * SLOT_BYTES
        self.map[at:at + SLOT_BYTES] = line.ljust(SLOT_BYTES, b"\0")
        self.count += 1

    @staticmethod
    def read(path):
        data = path.read_bytes()
        lines = [data[at:at + SLOT_BYTES].rstrip(b"\0").decode(errors="replace") for at in range(0, len(data), SLOT_BYTES)]
        return sorted(line for line in lines if line)


class Attack:
    """One kind of attack. `step` does it once; what it finds goes into a file."""

    name = "?"
    # Whether each step has a fresh connection.
    reconnects = False
    # Only against a server that is alone, or the other way round.
    single_only = set_only = False
    # Set where the server is a secondary.
    reads_anywhere = False

    def __init__(self, port, seed, number, folder):
        self.port, self.number = port, number
        self.folder = pathlib.Path(folder)
        self.random = random.Random(f"{seed}-{self.name}-{number}")
        self.steps = self.refused = 0
        self.slowest_end = self.counted = 0.0

    def note(self, text):
        self.notes.add(text)

    def found(self, text):
        """Something that must not be."""
        with open(self.folder / "findings", "a") as file:
            file.write(f"{self.name}-{self.number}: {text}\n")

    def connected(self, connection):
        """Called for each new connection that `step` gets."""

    def step(self, connection):
        raise NotImplementedError

    def ask(self, connection, command, shown=None):
        """Sends a command and looks at its reply, whatever it is."""
        shown = str(command if shown is None else shown)[:1500]
        self.note(shown)
        if self.reads_anywhere and isinstance(command, dict):
            command.setdefault("$readPreference", {"mode": "secondaryPreferred"})
        began = time.monotonic()
        connection.send(wire.message(command))
        reply = connection.receive()
        limit = command.get("maxTimeMS") if isinstance(command, dict) else None
        if isinstance(limit, int) and limit > 0 and reply.get("code") == 50:
            self.slowest_end = max(self.slowest_end, time.monotonic() - began - limit / 1000)
        errors = [reply, *(e for e in reply.get("writeErrors", []) if isinstance(e, dict))]
        for error in errors:
            # What a panic looks like; want of descriptors or space has code 1 too, here and there.
            if "internal error" in str(error.get("errmsg", "")):
                self.found(f"{shown} => {str(error.get('errmsg'))[:300]}")
        return reply

    def run(self):
        """Until the process is ended."""
        self.notes = Notes(self.folder / f"last-{self.name}-{self.number}")
        os.nice(5)
        connection = None
        while True:
            try:
                if connection is None:
                    connection = Connection(self.port, PATIENCE)
                    self.connected(connection)
                self.step(connection)
                self.steps += 1
                if not self.reconnects:
                    self.count()
                    continue
            except Gone:
                self.refused += 1
                time.sleep(0.02)
            except (bson.errors.BSONError, OverflowError, UnicodeError, RecursionError, KeyError, TypeError):
                # Python could not send this, or the reply has not what an attack asks for.
                self.refused += 1
            self.count()
            if connection:
                connection.close()
                connection = None

    def count(self):
        if time.monotonic() < self.counted + 0.5:
            return
        parent = multiprocessing.parent_process()
        if parent and not parent.is_alive():
            # Nobody is left to end this.
            raise SystemExit
        self.counted = time.monotonic()
        (self.folder / f"count-{self.name}-{self.number}").write_text(f"{self.steps} {self.refused} {self.slowest_end:.3f}")
