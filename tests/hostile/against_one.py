"""A run against one server, which is ended and killed meanwhile, and whose disk fills and empties."""

import os
import threading
import time

import limits
from against import Against, megabytes, prepare
from honest import Honest
from limits import ControlGroup, Watchdog
from sheaf_process import Server
from wire import Connection, Gone

# Before attackers' data fills the disk for good it is dropped.
ROOM_KEPT = 350 << 20
# After a full disk has room again, writes must be taken in this time.
ROOM_PATIENCE = 60


class Janitor:
    """Drops what attackers have written while there is little room, and makes what attacks need anew."""

    def __init__(self, port, disk):
        self.port, self.disk = port, disk
        self.dropped, self.paused = 0, False
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        made = 0.0
        while not self.stopping.wait(1):
            if time.monotonic() > made + 15:
                made = time.monotonic()
                prepare(self.port, 5)
            if not self.paused and self.disk.free() < ROOM_KEPT:
                self.drop()

    def drop(self):
        try:
            with Connection(self.port, 30) as connection:
                for name in ("hostile", "hostile2"):
                    connection.ask({"dropDatabase": 1, "$db": name})
                connection.ask({"fsync": 1, "$db": "admin"})
                self.dropped += 1
        except Gone:
            pass

    def stop(self):
        self.stopping.set()
        self.thread.join(60)


class AgainstOne(Against):
    """One server on its own."""

    title = "one server"

    def __init__(self, options, attacks):
        super().__init__(options, attacks)
        self.attacks = [kind for kind in self.attacks if not kind.set_only]
        self.disk = limits.small_disk()
        self.group = ControlGroup(f"sheaf-hostile-{os.getpid()}")
        self.server = Server(args=["--oplogSize", "64", "--syncdelay", "5"], dbpath=self.disk.folder / "data", log=self.folder / "server.log")
        self.server.env = self.disk.env
        enforced = None if self.group.folder else limits.MEMORY_BYTES + limits.SLACK_BYTES
        self.watchdog = Watchdog(enforced)
        self.descriptors = None
        self.honest = Honest(self.server.port, options.seed)
        self.janitor = None
        self.events = []
        self.most_descriptors = 0

    def servers(self):
        return [self.server]

    def start(self):
        self.server.through = self.group.through(self.descriptors)
        took = self.server.start()
        self.watchdog.pid = self.server.process.pid
        self.count("starts")
        self.tell(f"started in {took:.2f} s")

    def run(self):
        self.start()
        self.honest.begin()
        prepare(self.server.port)
        # What it needs at rest, with the honest clients and who pings, and 64 more.
        self.descriptors = limits.open_descriptors(self.server.process.pid) + 2 + limits.SPARE_DESCRIPTORS
        self.restart(kill=False)
        self.phase = self.begin_pings(self.server.port)
        self.janitor = Janitor(self.server.port, self.disk)
        self.attack(self.server.port)
        # Once, so that the seconds are those of the attacks.
        self.began = time.monotonic()
        while self.left() > 0 and not self.findings:
            self.work(min(self.left(), self.random.uniform(3, max(6, min(20, self.options.seconds / 8)))))
            if self.findings or self.left() <= 0:
                break
            kind = self.next_event()
            if kind == "fill":
                self.fill()
            elif kind == "look":
                self.find(self.honest.check())
            else:
                self.restart(kill=kind == "kill")
        self.finish()

    def next_event(self):
        """Each kind comes before any comes again, so that a short run has all."""
        if not self.events:
            self.events = ["look"] + ["fill", "fill"] * self.disk_fills + ["term", "term", "kill"] * self.ends
            self.random.shuffle(self.events)
        return self.events.pop()

    def work(self, seconds):
        """Lets everybody work, and sees that the server lives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.findings:
            time.sleep(0.2)
            code = self.server.process.poll()
            if code is not None:
                self.find([self.watchdog.verdict or f"the server ended by itself with {code}"])
                return
            self.most_descriptors = max(self.most_descriptors, limits.open_descriptors(self.server.process.pid))
            self.gather()

    def restart(self, kill):
        if getattr(self, "phase", None):
            self.phase.value = 1
        self.watchdog.pid = None
        if kill:
            self.server.kill()
            self.tell("SIGKILL")
            self.count("SIGKILL")
        else:
            self.end_server(self.server)
            self.count("SIGTERM")
        if self.findings:
            return
        try:
            self.start()
        except RuntimeError as error:
            self.find([f"the server does not start: {error}"])
            return
        if getattr(self, "phase", None):
            self.phase.value = 0
        self.find(self.honest.check())

    def fill(self):
        """The disk is full for some seconds, wholly or but for a little."""
        leave = self.random.choice([0, 0, 4 << 20, 30 << 20])
        self.janitor.paused = True
        self.disk.fill(leave)
        self.tell(f"full but for {megabytes(leave)}")
        self.count("full disks")
        self.work(self.random.uniform(1, 6))
        if not self.findings and self.ends and self.random.random() < 0.3:
            self.restart_full()
        self.disk.make_room()
        self.janitor.paused = False
        self.tell(f"room again: {megabytes(self.disk.free())}")
        if not self.findings:
            self.find(self.honest.wait_for_writes(ROOM_PATIENCE))

    def restart_full(self):
        """Ended while the disk is full; there is room again before it starts, as its folder may need some."""
        self.phase.value = 1
        self.watchdog.pid = None
        self.end_server(self.server, "with a full disk")
        self.count("SIGTERM")
        self.disk.make_room()
        self.start()
        self.phase.value = 0
        self.find(self.honest.check())

    def finish(self):
        self.janitor.stop()
        self.end_attacks()
        self.disk.make_room()
        if self.findings:
            return
        # Everybody else is gone: now it serves its honest clients as before.
        # A lock that an attacker asked for last may come after the first look.
        self.find(self.honest.wait_for_writes(ROOM_PATIENCE, self.unlock))
        self.find(self.honest.pause())
        self.restart(kill=True)
        if self.findings:
            return
        self.validate()
        self.honest.end()
        self.phase.value = 1
        self.end_server(self.server, "at the end")
        self.look_at_log(self.server)

    def unlock(self):
        with Connection(self.server.port, 30) as connection:
            while connection.ask({"fsyncUnlock": 1, "$db": "admin"}).get("lockCount"):
                pass

    def validate(self):
        with Connection(self.server.port, 120) as connection:
            for name in ("writes", "counters", "accounts", "ledger_bank1", "ledger_bank2"):
                reply = connection.ask({"validate": name, "full": True, "$db": "honest"})
                if not reply.get("valid"):
                    self.find([f"validate {name}: {str(reply)[:400]}"])

    def report_more(self):
        how = f"control group version {self.group.version}" if self.group.folder else "a watchdog"
        print(f"memory: {megabytes(limits.MEMORY_BYTES)} by {how}, at most {megabytes(self.watchdog.peak)} of its own; disk: {self.disk.kind}; "
              f"descriptors: {self.most_descriptors} of {self.descriptors}")
        clients = {client.name: (client.operations, client.refused, client.gone) for client in self.honest.clients}
        print(f"honest clients (acknowledged, refused, cut off): {clients}, looked at {self.honest.looks} times")
        reasons = sum((client.reasons for client in self.honest.clients), start=type(self.honest.clients[0].reasons)())
        print("refused for:", "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(6)))

    def cleanup(self):
        if self.janitor:
            self.janitor.stopping.set()
        self.watchdog.stop()
        self.server.kill()
        self.disk.make_room()
        self.disk.cleanup(keep=bool(self.findings))
        if self.findings:
            print(f"the disk's files are kept under {self.disk.top}")
        self.group.cleanup()
