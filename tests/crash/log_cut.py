"""Cuts the unsynced end of a stopped server's log: what a power loss leaves of it.

Zeros may follow the last entry. An entry of the log is `length:u32 crc:u32 term:u64 index:u64 time:u64 durable:u64 payload`, after a segment header of
32 bytes (crates/log). `durable` says up to which index the log was on disk when the entry was written.
"""

import os
import pathlib
import struct

SEGMENT_HEADER = 32
ENTRY_HEADER = struct.Struct("<IIQQQQ")


def entries(dbpath):
    """(file, offset, end, index, durable) of each whole entry, in log order."""
    for path in sorted(pathlib.Path(dbpath).rglob("[0-9]" * 20 + ".log")):
        data = path.read_bytes()
        at = SEGMENT_HEADER
        while at + ENTRY_HEADER.size <= len(data):
            length, _crc, _term, index, _time, durable = ENTRY_HEADER.unpack_from(data, at)
            end = at + ENTRY_HEADER.size + length
            if end > len(data) or index == 0:
                break
            yield path, at, end, index, durable
            at = end


def cut_unsynced(dbpath, durable_index, random):
    """Removes a random part of what may not have reached the disk; returns (entries cut, bytes cut)."""
    known = list(entries(dbpath))
    durable = max([durable_index] + [entry[4] for entry in known])
    unsynced = [entry for entry in known if entry[3] > durable]
    if not unsynced:
        return 0, 0
    first = random.randrange(len(unsynced))
    path, start, end, _, _ = unsynced[first]
    # Anywhere in the entry, so that its tail may be torn, too; or exactly at its start.
    cut_at = random.choice([start, random.randrange(start, end)])
    removed = path.stat().st_size - cut_at
    later = {entry[0] for entry in unsynced[first:]} - {path}
    size = path.stat().st_size
    if random.random() < 0.4:
        # The file kept its length, which had been synced with the zeros written ahead: only what was written over is lost.
        with open(path, "r+b") as file:
            file.seek(cut_at)
            file.write(bytes(size - cut_at))
    elif random.random() < 0.3 and end - start > 600:
        # A page that never arrived: the file has its length, but zeros inside of the torn entry and nothing after it.
        with open(path, "r+b") as file:
            file.truncate(end)
            hole = random.randrange(start + 40, end - 512)
            file.seek(hole)
            file.write(bytes(512))
    else:
        os.truncate(path, cut_at)
    for segment in later:
        removed += segment.stat().st_size
        segment.unlink()
    return len(unsynced) - first, removed
