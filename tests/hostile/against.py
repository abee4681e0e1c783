"""What a run against one server and against a set have in common: processes of attackers, pings, the report."""

import datetime
import json
import multiprocessing
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

import honest
from attack import Notes
from limits import MB
from wire import Connection, Gone

# Not plain forks: threads of this process hold locks.
CONTEXT = multiprocessing.get_context("forkserver")
# So many processes of an attack.
TWICE = {"memory", "processor", "values"}
PING_EVERY = 0.004
PING_AIM_MS, END_AIM_SECONDS = 50, 5
# The server's `slowms`: what takes longer is logged.
SLOW_MS = 100
# What must not be in the server's log.
ALARMS = ("panicked", "RUST_BACKTRACE", "has overflowed its stack", "Unclean end of storage", "refuses writes from now on")


def prepare(port, seconds=60):
    """The data that attacks are made of. Others may drop it at any time."""
    documents = [{"_id": n, "a": n % 100, "b": n % 17, "tags": [n % 5, f"t{n % 3}"], "s": "x" * (n % 300), "n": n} for n in range(2000)]
    large = [{"_id": n, "a": n, "s": "x" * 1_000_000} for n in range(8)]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with Connection(port, 20) as connection:
                for name, content in (("c0", documents), ("c1", documents), ("large", large)):
                    connection.ask({"insert": name, "documents": content, "ordered": False, "$db": "hostile"})
                connection.ask({"create": "capped", "capped": True, "size": 100_000, "$db": "hostile"})
                connection.ask({"create": "view", "viewOn": "c0", "pipeline": [{"$set": {"w": {"$range": [0, 100]}}}], "$db": "hostile"})
                return
        except Gone:
            time.sleep(0.2)


def attack_process(kind, port, seed, number, folder, options):
    """The body of an attacker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    attack = kind(port, seed, number, folder)
    for name, value in options.items():
        setattr(attack, name, value)
    try:
        attack.run()
    except Exception:
        attack.found("the attack itself has failed: " + traceback.format_exc()[-1500:])


class Against:
    """A run; subclasses say against what."""

    def __init__(self, options, attacks):
        self.options = options
        self.random = random.Random(options.seed)
        only = set(options.only)
        self.attacks = [kind for name, kind in attacks.items() if not only or name in only]
        self.disk_fills = not only or "disk" in only
        self.ends = not only or "ends" in only
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-hostile-run-"))
        self.findings = []
        self.processes, self.pingers = [], []
        # Waits of shutdowns, in seconds.
        self.shutdowns = []
        self.lateness = []
        self.counts = {}
        self.began = time.monotonic()

    def tell(self, what):
        if self.options.tell:
            print(f"{datetime.datetime.now():%H:%M:%S} {what}", flush=True)

    def left(self):
        return self.began + self.options.seconds - time.monotonic()

    def find(self, findings):
        for finding in findings:
            self.tell(f"FINDING {finding}")
        self.findings += findings

    def count(self, what, by=1):
        self.counts[what] = self.counts.get(what, 0) + by

    # --- processes ---

    def attack(self, port, generation=0, **options):
        """Starts every attack against a port."""
        for kind in self.attacks:
            for number in range(2 if kind.name in TWICE else 1):
                number += 10 * generation
                process = CONTEXT.Process(target=attack_process, args=(kind, port, self.options.seed, number, self.folder, options), daemon=True)
                process.start()
                self.processes.append(process)

    def end_attacks(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.processes.clear()
        self.gather()

    def gather(self):
        """What attackers have found so far."""
        path = self.folder / "findings"
        if path.exists():
            lines = [line for line in path.read_text(errors="replace").splitlines() if line]
            path.unlink()
            self.find([f"attack {line}" for line in lines])

    def begin_pings(self, port):
        phase = CONTEXT.Value("i", 0)
        path = self.folder / f"pings-{port}"
        process = CONTEXT.Process(target=honest.ping, args=(port, PING_EVERY, phase, path), daemon=True)
        process.start()
        self.pingers.append((process, phase, path))
        return phase

    def end_pings(self):
        for process, phase, _ in self.pingers:
            phase.value = 2
        for process, _, _ in self.pingers:
            process.join(honest.PATIENCE + 30)
            if process.is_alive():
                process.kill()
                process.join()

    # --- the server ---

    def end_server(self, server, what=""):
        """SIGTERM: it must end, whatever it is doing."""
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        try:
            code = server.process.wait(max(self.options.end_limit, 60))
        except Exception:
            self.find([f"SIGTERM has not ended the server in 60 s {what}"])
            server.kill()
            return
        took = time.monotonic() - began
        self.shutdowns.append(took)
        self.tell(f"SIGTERM: ended with {code} after {took:.2f} s {what}")
        if code != 0:
            self.find([f"SIGTERM: the server ended with {code} {what}"])
        if took > self.options.end_limit:
            self.find([f"SIGTERM: the server ended after {took:.1f} s {what}"])

    def look_at_log(self, server):
        with open(server.log_path, errors="replace") as log:
            for line in log:
                self.look_for_lateness(line)
                if any(alarm in line for alarm in ALARMS):
                    self.find([f"in the log: {line.strip()[:400]}"])
                    return

    def look_for_lateness(self, line):
        """Operations that ended by `maxTimeMS`, and how long after it, by the server's clock: the attackers' own shows how
        long they waited for a processor, too. Of shorter ones only those are in the log that were late."""
        if '"errCode":50' not in line:
            return
        try:
            about = json.loads(line)["attr"]
            limit, took = about["command"]["maxTimeMS"], about["durationMillis"]
        except (ValueError, KeyError, TypeError):
            return
        if isinstance(limit, int) and limit >= SLOW_MS:
            self.lateness.append((took - limit, next(iter(about["command"]))))

    # --- the report ---

    def report_pings(self):
        for _, _, path in self.pingers:
            if not path.exists():
                self.find(["the process that pings did not end"])
                continue
            stalls, found = honest.latencies(path)
            if not found:
                self.find(["no ping was answered"])
                continue
            at = {name: found[min(int(len(found) * share), len(found) - 1)] for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))}
            shown = ", ".join(f"{name} {value:.1f} ms" for name, value in at.items())
            aim = "" if at["p99.9"] < PING_AIM_MS else f"  (aim missed: p99.9 < {PING_AIM_MS} ms)"
            print(f"pings {path.name.split('-')[1]}: {len(found)}, {shown}, longest {found[-1]:.0f} ms, {stalls} without an answer{aim}")
            if found[-1] > self.options.ping_limit * 1000:
                self.find([f"a ping took {found[-1]:.0f} ms, the limit is {self.options.ping_limit} s"])

    def report_attacks(self):
        totals, slowest = {}, {}
        for path in self.folder.glob("count-*"):
            name = path.name.split("-")[1]
            counted = path.read_text().split()
            if len(counted) != 3:
                # It was ended while it wrote.
                continue
            steps, refused, late = counted
            known = totals.get(name, (0, 0))
            totals[name] = (known[0] + int(steps), known[1] + int(refused))
            slowest[name] = max(slowest.get(name, 0), float(late))
        print("attacks:", ", ".join(f"{name} {steps} (+{refused} cut off)" for name, (steps, refused) in sorted(totals.items())))
        late = {name: value for name, value in slowest.items() if value > 0}
        if late:
            print("ended by maxTimeMS, at the latest so much after it, by the attackers' clocks:", ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in sorted(late.items())))

        if self.lateness:
            found = sorted(self.lateness)
            at = ", ".join(f"{share} {found[min(int(len(found) * value), len(found) - 1)][0]} ms" for share, value in (("p50", 0.5), ("p99", 0.99)))
            worst = ", ".join(f"{name} {late} ms" for late, name in found[:-6:-1])
            print(f"by the server's: {len(found)} operations, {at}; the latest: {worst}")

    def report_requests(self):
        for path in sorted(self.folder.glob("last-*")):
            print(f"--- last of {path.name[5:]}")
            print("\n".join(line[:500] for line in Notes.read(path)[-4:]))

    def report(self, servers):
        took = time.monotonic() - self.began
        print(f"hostile clients, {self.title}: {took:.0f} s, seed {self.options.seed}, {self.counts}")
        self.report_pings()
        self.report_attacks()
        if self.shutdowns:
            slow = sorted(self.shutdowns)
            aim = "" if slow[-1] < END_AIM_SECONDS else f"  (aim missed: {END_AIM_SECONDS} s)"
            print(f"shutdowns: {len(slow)}, half of them within {slow[len(slow) // 2]:.2f} s, all within {slow[-1]:.2f} s{aim}")
        self.report_more()
        if not self.findings:
            shutil.rmtree(self.folder, ignore_errors=True)
            print(f"hostile clients, {self.title}: 1 passed, 0 failed")
            return 0
        print(f"FAIL  {time.monotonic() - self.began:5.1f} s  hostile clients, {self.title}, seed {self.options.seed}: {len(self.findings)} findings")
        print("\n".join(finding[:1500] for finding in self.findings[:20]))
        self.report_requests()
        for server in servers:
            print(f"--- end of the server's log ({server.log_path})\n{server.log_tail(15)[-6000:]}")
        print(f"kept: {self.folder}", *(server.dbpath for server in servers))
        print(f"hostile clients, {self.title}: 0 passed, 1 failed")
        return 1

    def report_more(self):
        """Figures of a kind of run."""

    def main(self):
        """Runs, whatever happens leaves no process, and gives the exit status."""
        try:
            try:
                self.run()
            except Exception as error:
                traceback.print_exc(file=sys.stdout)
                self.find([f"the run itself has failed: {error!r}, exit codes {[s.process and s.process.poll() for s in self.servers()]}"])
            self.end_attacks()
            self.end_pings()
            return self.report(self.servers())
        finally:
            for process in self.processes:
                process.kill()
            for process, _, _ in self.pingers:
                process.kill()
            self.cleanup()


def megabytes(count):
    return f"{count / MB:.0f} MB"
