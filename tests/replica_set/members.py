"""A replica set of temporary servers."""

import time

import pymongo
from pymongo.errors import PyMongoError

from sheaf_process import Server, free_port

# Long enough for any machine; what does not work takes for ever.
PATIENCE = 120


def eventually(condition, what):
    """Waits until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in {PATIENCE} s: {what}"
        time.sleep(0.02)


class ReplicaSet:
    """Members are `sheaf server` processes; `configs` are the fields of each besides `_id` and `host`."""

    def __init__(self, configs=({}, {}, {}), name="rs", args=(), settings=None):
        self.name = name
        self.args = ["--replSet", name, "--setParameter", "enableTestCommands=1", *args]
        self.servers = [Server(args=self.args, port=free_port()) for _ in configs]
        self.config = {
            "_id": name,
            "members": [{"_id": at, "host": self.host(at), **config} for at, config in enumerate(configs)],
            "settings": {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500, **(settings or {})},
        }

    def host(self, at):
        return f"127.0.0.1:{self.servers[at].port}"

    @property
    def uri(self):
        hosts = ",".join(self.host(at) for at, member in enumerate(self.config["members"]) if not member.get("arbiterOnly"))
        return f"mongodb://{hosts}/?replicaSet={self.name}"

    def client(self, **options):
        return pymongo.MongoClient(self.uri, **{"serverSelectionTimeoutMS": 60000, "heartbeatFrequencyMS": 500, **options})

    def direct(self, at, **options):
        uri = f"mongodb://{self.host(at)}/?directConnection=true"
        return pymongo.MongoClient(uri, **{"serverSelectionTimeoutMS": 60000, **options})

    def start(self):
        for server in self.servers:
            server.start()
        with self.direct(0) as first:
            first.admin.command("replSetInitiate", self.config)
        self.wait_for(lambda states: states.count("PRIMARY") == 1 and all(s in ("PRIMARY", "SECONDARY", "ARBITER") for s in states))

    def states(self):
        """The state of each member as it says itself; None for one that does not answer."""
        states = []
        for at, server in enumerate(self.servers):
            try:
                with self.direct(at, serverSelectionTimeoutMS=2000, socketTimeoutMS=5000) as client:
                    status = client.admin.command("replSetGetStatus")
                    states.append(next(m["stateStr"] for m in status["members"] if m.get("self")))
            except (PyMongoError, StopIteration):
                states.append(None)
        return states

    def wait_for(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while True:
            states = self.states()
            if condition(states):
                return states
            if time.monotonic() > deadline:
                raise AssertionError(f"the set did not come to rest: {states}\n{self.logs()}")
            time.sleep(0.05)

    def primary(self):
        return self.wait_for(lambda states: states.count("PRIMARY") == 1).index("PRIMARY")

    def secondaries(self):
        """Those that follow: there must be one."""
        return [at for at, state in enumerate(self.wait_for(lambda states: "SECONDARY" in states)) if state == "SECONDARY"]

    def step_down(self, seconds):
        """Makes the primary step down, and gives the number of the member that it was.

        It is refused while nobody else may follow at once: whoever has just stepped down stands back for its time.
        """
        deadline = time.monotonic() + 120
        while True:
            at = self.primary()
            try:
                with self.direct(at) as client:
                    client.admin.command("replSetStepDown", seconds, secondaryCatchUpPeriodSecs=1)
                return at
            except PyMongoError as error:
                # ExceededTimeLimit, or another one has become the primary meanwhile.
                code = (error.details or {}).get("code") if hasattr(error, "details") else None
                if code not in (262, 10107) or time.monotonic() > deadline:
                    raise

    def logs(self):
        return "\n".join(f"--- member {at}\n{server.log_tail(15)}" for at, server in enumerate(self.servers))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.logs())
        for server in self.servers:
            server.cleanup()
