"""Follows the logs of servers, and kills one at the moment at which it writes a certain line."""

import json
import os
import signal
import threading
import time

# What clients cause at any time: connections and their ends, metadata, slow operations, documents that fail validation.
NOISE = {22943, 22944, 22988, 51800, 51803, 20294}


class Lines:
    """New lines of one log file, as (id, text)."""

    def __init__(self, path):
        self.path = path
        self.rest = b""
        self.skip()

    def skip(self):
        """What is there by now was not asked for."""
        self.offset = self.path.stat().st_size if self.path.exists() else 0
        self.rest = b""

    def new(self):
        try:
            with open(self.path, "rb") as log:
                log.seek(self.offset)
                data = log.read()
        except FileNotFoundError:
            return []
        self.offset += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        found = []
        for line in whole:
            try:
                parsed = json.loads(line)
            except ValueError:
                continue
            if isinstance(parsed, dict) and "id" in parsed and parsed["id"] not in NOISE:
                # Sheaf's own lines share ids here and there: their texts tell them apart.
                found.append((parsed["id"], parsed.get("msg", "")))
        return found


class Killer:
    """Kills whichever of some servers first writes a line; remembers all lines that it has seen, and which have killed."""

    def __init__(self, servers):
        self.servers = servers
        self.lines = [Lines(server.log_path) for server in servers]
        # How often a line was written, and how often it was the moment of a kill.
        self.seen, self.kills = {}, {}
        # How often a line was waited for in vain.
        self.misses = {}

    def skip(self):
        for lines in self.lines:
            lines.skip()

    def read(self, target=None, delay=0.0):
        """Reads what is new; kills the first server that has written the target, and gives its number."""
        victim = None
        for number, lines in enumerate(self.lines):
            for key in lines.new():
                self.seen[key] = self.seen.get(key, 0) + 1
                if key == target and victim is None:
                    victim = number
                    time.sleep(delay)
                    self.kill(number)
        if victim is not None:
            self.kills[target] = self.kills.get(target, 0) + 1
        return victim

    def kill(self, number):
        process = self.servers[number].process
        if process and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)

    def next_target(self, random):
        """One of the lines that have killed least; those that do not come again are asked for less and less."""
        if not self.seen:
            return None
        tried = {key: self.kills.get(key, 0) + self.misses.get(key, 0) for key in self.seen}
        least = min(tried.values())
        return random.choice(sorted(key for key, count in tried.items() if count == least))

    def wait(self, target, until, delay=0.0):
        """Waits for the target until `until()` is true. The number of the server that was killed, or None."""
        while True:
            over = until()
            victim = self.read(target, delay)
            if victim is not None:
                return victim
            if over:
                self.missed(target)
                return None
            time.sleep(0.0005)

    def missed(self, target):
        """The line did not come."""
        self.misses[target] = self.misses.get(target, 0) + 1

    def armed(self, target, delay=0.0):
        """Does the same beside whoever goes on; see `Armed`."""
        return Armed(self, target, delay)

    def report(self):
        killed = {f"{identity} {text}": self.kills.get((identity, text), 0) for identity, text in self.seen}
        never = sorted(text for text, count in killed.items() if not count)
        return (f"{len(killed)} lines seen, {len(killed) - len(never)} of them were moments of {sum(killed.values())} kills"
                + (f"; never: {never}" if never else ""))


class Armed:
    """A thread that waits for a line while other things are done."""

    def __init__(self, killer, target, delay):
        self.killer, self.target, self.delay = killer, target, delay
        self.victim = None
        # Whether somebody has seen to the victim.
        self.handled = False
        self.stopping = threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def run(self):
        self.victim = self.killer.wait(self.target, self.stopping.is_set, self.delay)

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()
