"""A run against each member of a set: none loses its office, none falls out."""

import os
import time

import limits
from against import Against, megabytes, prepare
from honest import Honest, Refused, ask
from limits import ControlGroup, Watchdog
from members import ReplicaSet
from wire import Connection, Gone

# Only the followers' disks and processors say how long they need to have everything.
CATCH_UP = 180


class AgainstSet(Against):
    """Three members; whoever is attacked, the primary stays the same."""

    title = "a set of three"

    def __init__(self, options, attacks):
        super().__init__(options, attacks)
        self.attacks = [kind for kind in self.attacks if not kind.single_only]
        # The time that servers have by themselves.
        self.members = ReplicaSet(args=["--oplogSize", "990"], settings={"electionTimeoutMillis": 10_000, "heartbeatIntervalMillis": 2000})
        self.groups, self.watchdogs = [], []
        for at, server in enumerate(self.members.servers):
            group = ControlGroup(f"sheaf-hostile-{os.getpid()}-{at}")
            self.groups.append(group)
            self.watchdogs.append(Watchdog(None if group.folder else limits.MEMORY_BYTES + limits.SLACK_BYTES))
            server.through = group.through(None)
        self.honest = None

    def servers(self):
        return self.members.servers

    def run(self):
        self.members.start()
        for server, watchdog in zip(self.servers(), self.watchdogs):
            watchdog.pid = server.process.pid
        self.primary = self.members.primary()
        self.honest = Honest(self.servers()[self.primary].port, self.options.seed, with_majority=True)
        self.honest.begin()
        prepare(self.servers()[self.primary].port)
        self.term = self.status(self.primary)["term"]
        for server in self.servers():
            self.begin_pings(server.port)
        self.began = time.monotonic()
        for generation in range(3):
            self.attack_member((self.primary + generation) % 3, generation)
            if self.findings:
                break
        self.finish()

    def status(self, at):
        """What a member says of itself and the others."""
        deadline = time.monotonic() + 30
        while True:
            try:
                with Connection(self.servers()[at].port, 30) as connection:
                    return ask(connection, {"replSetGetStatus": 1, "$db": "admin"})
            except (Gone, Refused):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def attack_member(self, at, generation):
        what = "primary" if at == self.primary else "secondary"
        self.tell(f"against member {at}, a {what}")
        prepare(self.servers()[self.primary].port)
        self.attack(self.servers()[at].port, generation, reads_anywhere=at != self.primary)
        end = time.monotonic() + self.options.seconds / 3
        while time.monotonic() < end and not self.findings:
            time.sleep(0.5)
            self.look_at_processes(at)
            self.gather()
        self.end_attacks()
        self.look_at_processes(at)
        self.count(f"attacked a {what}")
        if not self.findings:
            self.check_office(at)

    def look_at_processes(self, attacked):
        for number, server in enumerate(self.servers()):
            if (code := server.process.poll()) is not None and not self.findings:
                self.find([self.watchdogs[number].verdict or f"member {number} ended by itself with {code}, member {attacked} was attacked"])

    def check_office(self, at):
        """Nobody was killed, so nobody may have been elected, and all follow."""
        self.unlock(at)
        status = self.status(self.primary)
        if status["term"] != self.term or status["myState"] != 1:
            self.find([f"an election while member {at} was attacked: term {self.term} became {status['term']}, member {self.primary} has state {status['myState']}"])
            return
        deadline = time.monotonic() + CATCH_UP
        while True:
            try:
                # Who has this has everything before it.
                with Connection(self.servers()[self.primary].port, 60) as connection:
                    ask(connection, {"insert": "marks", "documents": [{}], "writeConcern": {"w": 3, "wtimeout": 30_000}})
                break
            except (Gone, Refused) as error:
                if time.monotonic() > deadline:
                    self.find([f"the members do not catch up after member {at} was attacked: {error}"])
                    return
                # A lock that an attacker asked for last may come after the first look.
                self.unlock(at)
        states = [member["stateStr"] for member in self.status(self.primary)["members"]]
        if sorted(states) != ["PRIMARY", "SECONDARY", "SECONDARY"]:
            self.find([f"after member {at} was attacked: {states}"])
        self.find(self.honest.check())

    def unlock(self, at):
        with Connection(self.servers()[at].port, 30) as connection:
            while connection.ask({"fsyncUnlock": 1, "$db": "admin"}).get("lockCount"):
                pass

    def finish(self):
        self.end_attacks()
        self.end_pings()
        if self.findings:
            return
        self.find(self.honest.wait_for_writes(60))
        self.find(self.honest.pause())
        with Connection(self.servers()[self.primary].port, 120) as connection:
            ask(connection, {"insert": "marks", "documents": [{}], "writeConcern": {"w": 3, "wtimeout": 120_000}})
        self.find(self.honest.check())
        hashes = []
        for server in self.servers():
            with Connection(server.port, 120) as connection:
                hashes.append(ask(connection, {"dbHash": 1, "$readPreference": {"mode": "secondaryPreferred"}})["collections"])
        if hashes[0] != hashes[1] or hashes[0] != hashes[2]:
            self.find([f"members differ: {hashes}"])
        self.honest.end()
        for at, server in enumerate(self.servers()):
            self.watchdogs[at].pid = None
            self.end_server(server, f"(member {at})")
            self.look_at_log(server)

    def report_more(self):
        peaks = ", ".join(megabytes(watchdog.peak) for watchdog in self.watchdogs)
        how = f"control groups version {self.groups[0].version}" if self.groups[0].folder else "a watchdog"
        print(f"memory: {megabytes(limits.MEMORY_BYTES)} each by {how}, at most {peaks} of their own")
        if self.honest:
            clients = {client.name: (client.operations, client.refused, client.gone) for client in self.honest.clients}
            print(f"honest clients (acknowledged, refused, cut off): {clients}, looked at {self.honest.looks} times")

    def cleanup(self):
        for watchdog in self.watchdogs:
            watchdog.stop()
        for server in self.servers():
            server.kill()
            if not self.findings:
                server.cleanup()
        for group in self.groups:
            group.cleanup()
