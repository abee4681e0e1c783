"""A sharded cluster of temporary servers: config servers, shards, and routers on neighbouring ports."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
sys.path.insert(0, str(HERE.parent / "replica_set"))

import pymongo  # noqa: E402
from members import ReplicaSet, eventually  # noqa: E402,F401
from sheaf_process import Server, claim, free_port  # noqa: E402


class Router(Server):
    """One `sheaf router` process."""

    def __init__(self, configdb, port):
        super().__init__(args=["--configdb", configdb, "--setParameter", "enableTestCommands=1"], port=port)

    @property
    def command(self):
        return [str(self.binary), "router", "--port", str(self.port), "--bind_ip", "127.0.0.1", *self.args]


def neighbours(count):
    """Ports in a row that are free."""
    while True:
        first = free_port()
        try:
            import socket
            sockets = [socket.create_server(("127.0.0.1", first + at)) for at in range(count)]
        except OSError:
            continue
        for each in sockets:
            each.close()
        if not all(claim(first + at) for at in range(1, count)):
            continue
        return [first + at for at in range(count)]


class Cluster:
    """`shards` sets of `members`, one config server, `routers` routers. Nothing moves by itself unless it `balances`. The servers
    with data get `args`, too."""

    def __init__(self, shards=2, members=1, routers=2, balances=False, configs=1, args=()):
        self.balances = balances
        each = [{}] * members
        self.config = ReplicaSet([{}] * configs, name="config", args=["--configsvr", *args])
        self.config.config["configsvr"] = True
        self.shards = [ReplicaSet(each, name=f"shard{at}", args=["--shardsvr", *args]) for at in range(shards)]
        self.routers = [Router(self.address(self.config), port) for port in neighbours(routers)]

    @staticmethod
    def address(members):
        return f"{members.name}/" + ",".join(members.host(at) for at in range(len(members.servers)))

    @property
    def uri(self):
        return "mongodb://" + ",".join(f"127.0.0.1:{router.port}" for router in self.routers) + "/"

    @property
    def servers(self):
        return [*self.routers, *(server for members in [*self.shards, self.config] for server in members.servers)]

    def client(self, router=None, **options):
        uri = self.uri if router is None else f"mongodb://127.0.0.1:{self.routers[router].port}/"
        return pymongo.MongoClient(uri, **{"serverSelectionTimeoutMS": 60000, **options})

    def start(self):
        for members in [self.config, *self.shards]:
            members.start()
        for router in self.routers:
            router.start()
        with self.client() as client:
            for members in self.shards:
                client.admin.command("addShard", self.address(members))
            if not self.balances:
                client.admin.command("balancerStop")

    def shard(self, namespace, key, ranges=()):
        """Shards a collection; `ranges` are (lower bound, upper bound, shard's number) and become zones."""
        with self.config.direct(0) as config:
            for low, high, shard in ranges:
                config.config.shards.update_one({"_id": f"shard{shard}"}, {"$addToSet": {"tags": f"zone{shard}"}})
                config.config.tags.insert_one(
                    {"_id": {"ns": namespace, "min": low}, "ns": namespace, "min": low, "max": high, "tag": f"zone{shard}"})
        with self.client() as client:
            client.admin.command("shardCollection", namespace, key=key)

    def fill(self, namespace, documents):
        """Inserts documents on the shards that own them, without a router."""
        db, collection = namespace.split(".", 1)
        left = list(documents)
        for members in self.shards:
            with members.direct(members.primary()) as shard:
                refused = []
                for document in left:
                    try:
                        shard[db][collection].insert_one(document)
                    except pymongo.errors.OperationFailure as error:
                        assert error.code == 13388, error
                        refused.append(document)
                left = refused
        assert not left, left[:3]

    def cleanup(self):
        for server in self.servers:
            server.cleanup()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            self.show_logs()
        self.cleanup()

    def show_logs(self):
        for server in self.servers:
            print(f"--- {server.command}\n{server.log_tail(10)}", flush=True)
