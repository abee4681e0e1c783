"""Disks that are slow, full, broken or lose power, for servers of the tests.

`disk_faults.c` is loaded into the server and notes what it has synced. After the process was killed, `Disk.lose_power` leaves
in the data folder what a power failure could have left at that moment: everything that was synced, and of the rest (ends of
files, new names, removals, renames) a part or nothing. A server that acts on something before it is synced loses it here.
"""

import mmap
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile

from sheaf_process import cache_dir

SOURCE = pathlib.Path(__file__).with_name("disk_faults.c")
PAGE = 4096
# The files of the log may be longer than what was written: zeros are written ahead.
LOG = re.compile(r"[0-9]{20}\.log")


def library():
    """The compiled library, in the cache."""
    built = cache_dir() / "disk_faults.so"
    if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
        fresh = built.with_name(f"disk_faults.{os.getpid()}.so")
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(fresh), str(SOURCE)], check=True)
        fresh.replace(built)
    return built


class Disk:
    """The disk under one data folder. `server.env = disk.env` puts it there; made before the server's first start."""

    def __init__(self, dbpath):
        self.root = pathlib.Path(dbpath).resolve()
        # Beside the folder, so that hard links can be made.
        self.side = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.root.name}-disk-", dir=self.root.parent))
        (self.side / "control").write_bytes(bytes(12))
        self.settle()

    @property
    def env(self):
        return {"LD_PRELOAD": str(library()), "DISK_FAULTS_ROOT": str(self.root), "DISK_FAULTS_SIDE": str(self.side)}

    def slow(self, millis):
        """Each sync takes so much longer from now on, while the server runs."""
        self.set(0, millis)

    def full(self, full):
        """From now on nothing that takes more space succeeds, or everything."""
        self.set(4, int(full))

    def broken(self, broken):
        """From now on no sync of a file succeeds, or each."""
        self.set(8, int(broken))

    def set(self, at, value):
        with open(self.side / "control", "r+b") as file, mmap.mmap(file.fileno(), 12) as control:
            control[at:at + 4] = struct.pack("=I", value)

    def settle(self):
        """All that is in the folder now lasts. No server runs."""
        (self.side / "journal").write_bytes(b"")
        for kept in self.side.glob("kept-*"):
            kept.unlink()
        self.sizes = {found.st_ino: found.st_size for _, found in self.files()}

    def files(self):
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path, path.stat()

    def cleanup(self):
        shutil.rmtree(self.side, ignore_errors=True)

    def lose_power(self, random, lie=False):
        """What a power failure leaves of a server that was just killed; returns (bytes lost, names lost). With `lie` the disk
        had not done what it said, so that something is lost that must not be."""
        journal = Journal(self.side / "journal", self.sizes)
        undone = journal.lost_names(random)
        for change in reversed(undone):
            change.undo(journal.changes)
        lost = 0
        for path, found in self.files():
            size, offset = journal.synced.get(found.st_ino, (self.sizes.get(found.st_ino, 0),) * 2)
            if LOG.fullmatch(path.name):
                lost += lose_end(path, offset // 2 if lie else offset, written_end(path), size, random)
            else:
                lost += lose_end(path, size, found.st_size, size, random)
        self.settle()
        return lost, len(undone)


class Change:
    """A change of names."""

    def __init__(self, kind, at, paths):
        self.kind, self.at, self.paths = kind, at, paths
        # Folders that must be synced before it lasts.
        names = paths[:2] if kind == "R" else paths[:1]
        self.folders = {os.path.dirname(name) for name in names}

    def moved(self, old, new):
        """A folder above has another name."""
        def there(path):
            return new + path[len(old):] if path == old or path.startswith(old + "/") else path
        self.paths = [there(path) for path in self.paths]
        self.folders = {there(path) for path in self.folders}

    def undo(self, all_changes):
        path = self.paths[0]
        if not os.path.isdir(os.path.dirname(path)):
            # Its folder is gone, and that lasts.
            return
        if self.kind in "CL":
            pathlib.Path(path).unlink(missing_ok=True)
        elif self.kind == "M":
            shutil.rmtree(path, ignore_errors=True)
        elif self.kind == "K":
            os.makedirs(path, exist_ok=True)
        elif self.kind == "U" and self.paths[1] != "-" and not os.path.lexists(path):
            os.link(self.paths[1], path)
        elif self.kind == "R":
            _, new, kept = self.paths
            if os.path.lexists(new) and not os.path.lexists(path):
                os.rename(new, path)
                for change in all_changes:
                    if change.at < self.at:
                        change.moved(new, path)
            if kept != "-" and not os.path.lexists(new):
                os.link(kept, new)


class Journal:
    """What disk_faults.c has noted."""

    def __init__(self, path, sizes):
        # For each file the length and the offset at its last sync.
        self.synced = {ino: (size, size) for ino, size in sizes.items()}
        # In order, those that are not yet on disk; folders that were renamed are known under their last name.
        self.changes = []
        at = 0
        for line in path.read_bytes().splitlines(keepends=True):
            at += len(line)
            if line.endswith(b"\n"):
                kind, *fields = line.rstrip(b"\n").decode().split("\t")
                self.take(kind, at, fields)

    def take(self, kind, at, fields):
        if kind == "S":
            ino, size, offset = map(int, fields)
            known = self.synced.get(ino, (0, 0))
            self.synced[ino] = (max(known[0], size), max(known[1], min(offset, size)))
        elif kind == "T":
            ino, size = map(int, fields)
            known = self.synced.get(ino, (0, 0))
            self.synced[ino] = (min(known[0], size), min(known[1], size))
        elif kind == "D":
            for change in self.changes:
                if change.at <= int(fields[1]):
                    change.folders.discard(fields[0])
            self.changes = [change for change in self.changes if change.folders]
        else:
            if kind == "R" and os.path.isdir(fields[1]):
                for change in self.changes:
                    change.moved(fields[0], fields[1])
            self.changes.append(Change(kind, at, fields))

    def lost_names(self, random):
        """File systems keep the order of such changes, so an end of them is lost."""
        keep = random.choice([0, len(self.changes), random.randint(0, len(self.changes))])
        return self.changes[keep:]


def written_end(path):
    """Where a file's trailing zeros begin."""
    return len(path.read_bytes().rstrip(b"\0"))


def lose_end(path, safe, end, length, random):
    """Of the bytes from `safe` to `end` some or all did not reach the disk; the file's `length` did."""
    if end <= safe:
        return 0
    how = random.choice(["all", "nothing", "cut", "cut", "cut", "pages"])
    if how == "nothing":
        return 0
    before = path.stat().st_size
    with open(path, "r+b") as file:
        if how == "pages":
            # Those that did arrive are in their places, also behind others that did not.
            lost = 0
            for page in range(safe // PAGE * PAGE, end, PAGE):
                first, last = max(page, safe), min(page + PAGE, end)
                if random.random() < 0.5:
                    file.seek(first)
                    file.write(bytes(last - first))
                    lost += last - first
            return lost
        cut = safe if how == "all" else random.randrange(safe, end)
        file.truncate(cut)
        file.truncate(random.choice([max(cut, length), before]) if before > cut else cut)
    return end - cut
