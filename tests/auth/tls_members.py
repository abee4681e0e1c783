"""TLS between servers: sets, shards and routers, how a deployment changes to it, and members that are known by certificates."""

import contextlib
import threading
import time

import pymongo
from common import command_fails, connect
from members import KEY, PASSWORD, Keys, Router, as_member, wait_for
from pymongo.errors import PyMongoError
from retried import retried
from sheaf_process import answers_hello
from tls import Certificates, TlsServer

MEMBER = "/O=Sheaf/OU=members/CN="


class TlsRouter(Router, TlsServer):
    """A router that answers only who speaks TLS."""


def options(certificates, tls=True):
    """By what a client connects."""
    if not tls:
        return {}
    return {"tls": True, "tlsCAFile": certificates.ca, "tlsCertificateKeyFile": certificates.ann}


def direct(server, certificates, tls=True, **more):
    return connect(server, **options(certificates, tls), **more)


def initiate(servers, name, certificates, tls=True, **more):
    members = [{"_id": at, "host": f"127.0.0.1:{server.port}"} for at, server in enumerate(servers)]
    with direct(servers[0], certificates, tls) as client:
        client.admin.command("replSetInitiate", {"_id": name, "members": members, **more})
        wait_for("a primary", lambda: client.admin.command("hello")["isWritablePrimary"])


def uri(servers, name):
    return f"mongodb://{','.join(f'127.0.0.1:{server.port}' for server in servers)}/?replicaSet={name}"


class Writer:
    """Writes all the time for a majority, as an application does that tries a write once more; counts what was acknowledged."""

    def __init__(self, servers, certificates):
        self.clients = [
            pymongo.MongoClient(uri(servers, "rs"), username="root", password=PASSWORD, serverSelectionTimeoutMS=30_000, **more)
            for more in (options(certificates, False), options(certificates))
        ]
        self.acknowledged, self.failed, self.ended = 0, [], threading.Event()
        self.tls = False
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        for client in self.clients:
            client.close()

    def run(self):
        while not self.ended.is_set():
            c = self.clients[self.tls].lib.get_collection("c", write_concern=pymongo.WriteConcern("majority", wtimeout=30_000))
            try:
                retried(lambda: c.insert_one({"_id": self.acknowledged}))
                self.acknowledged += 1
            except PyMongoError as error:
                self.failed.append(error)
                self.acknowledged += 1
            time.sleep(0.01)

    def goes_on(self):
        before = self.acknowledged
        wait_for("writes", lambda: self.acknowledged > before + 5)
        assert not self.failed, self.failed[:3]


def every_member(servers, certificates, tls=True):
    """All members are there, and have what is written now."""
    with pymongo.MongoClient(uri(servers, "rs"), username="root", password=PASSWORD, **options(certificates, tls)) as client:
        c = client.lib.get_collection("every", write_concern=pymongo.WriteConcern(len(servers), wtimeout=60_000))
        wait_for("a write everywhere", lambda: c.insert_one({}))


def rolling_change():
    """disabled, allowTLS, preferTLS, requireTLS, member by member, under writes that never fail."""
    with contextlib.ExitStack() as stack:
        keys, certificates = stack.enter_context(Keys()), stack.enter_context(Certificates())
        plain = ["--replSet", "rs", "--keyFile", keys.key]
        servers = [stack.enter_context(TlsServer(args=plain)) for _ in range(3)]
        initiate(servers, "rs", certificates, tls=False)
        with direct(servers[0], certificates, tls=False) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        writer = stack.enter_context(Writer(servers, certificates))
        writer.goes_on()
        for mode in ("allowTLS", "preferTLS", "requireTLS"):
            if mode == "requireTLS":
                writer.tls = True
            for server in servers:
                server.stop()
                server.args = [*plain, *certificates.flags(mode)]
                server.start()
                every_member(servers, certificates, tls=mode == "requireTLS")
                writer.goes_on()
                # Without TLS. A driver that is refused would try for half a minute.
                assert answers_hello(server.port, 60) is (mode != "requireTLS")


def by_parameters():
    """A set that takes TLS changes to TLS, and from the key to certificates, while it runs."""
    with contextlib.ExitStack() as stack:
        keys, certificates = stack.enter_context(Keys()), stack.enter_context(Certificates())
        files = [certificates.signed(f"member{at}", f"{MEMBER}m{at}") for at in range(3)]
        flags = lambda file: ["--tlsCertificateKeyFile", file, "--tlsCAFile", certificates.ca, "--replSet", "rs"]
        servers = [
            stack.enter_context(TlsServer(args=[
                *flags(file), "--tlsMode", "allowTLS", "--keyFile", keys.key, "--clusterAuthMode", "sendKeyFile",
            ])) for file in files
        ]
        initiate(servers, "rs", certificates)
        with direct(servers[0], certificates) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        clients = [direct(server, certificates, user="root", password=PASSWORD) for server in servers]
        command_fails(2, clients[0].admin, "setParameter", tlsMode="requireTLS", words="Illegal state transition for tlsMode")
        command_fails(2, clients[0].admin, "setParameter", clusterAuthMode="sendX509", words="need to enable TLS")
        for name, value in [("tlsMode", "preferTLS"), ("tlsMode", "requireTLS"), ("clusterAuthMode", "sendX509"), ("clusterAuthMode", "x509")]:
            for client in clients:
                client.admin.command("setParameter", 1, **{name: value})
                assert client.admin.command("getParameter", 1, **{name: 1})[name] == value
            every_member(servers, certificates)
        command_fails(2, clients[0].admin, "setParameter", clusterAuthMode="keyFile", words="Illegal state transition for clusterAuthMode")
        # Links that are made anew are by certificates; the key opens nothing any more.
        for server, file in zip(servers, files):
            server.stop()
            server.args = [*flags(file), "--tlsMode", "requireTLS", "--clusterAuthMode", "x509"]
            server.start()
            every_member(servers, certificates)
        with as_member(servers[0], KEY, **options(certificates)) as client:
            command_fails(18, client.admin, "ping")
        # A tool with a member's certificate is one of them; ann's is of another unit.
        by_certificate = {"authMechanism": "MONGODB-X509", "authSource": "$external", "tls": True, "tlsCAFile": certificates.ca}
        with connect(servers[0], tlsCertificateKeyFile=files[1], **by_certificate) as tool:
            assert tool.admin.command("replSetGetStatus")["set"] == "rs"
        # All members are one user; the log says whose certificate it was.
        assert '"result":0,"extraInfo":{"subject":"CN=' in servers[0].log_path.read_text()
        with connect(servers[0], tlsCertificateKeyFile=certificates.ann, **by_certificate) as ann:
            command_fails(18, ann.admin, "replSetGetStatus")
        # The primary goes, another leads; who comes back fetches what it has missed.
        servers[0].kill()
        wait_for("another primary", lambda: any(
            client.admin.command("hello")["isWritablePrimary"] for client in clients[1:]))
        servers[0].start()
        every_member(servers, certificates)
        # A new member fetches a copy.
        late_file = certificates.signed("late", f"{MEMBER}late")
        late = stack.enter_context(TlsServer(args=[*flags(late_file), "--tlsMode", "requireTLS", "--clusterAuthMode", "x509"]))
        stranger_file = certificates.signed("stranger", "/O=Sheaf/OU=others/CN=stranger")
        stranger = stack.enter_context(TlsServer(args=[*flags(stranger_file), "--tlsMode", "requireTLS", "--clusterAuthMode", "x509"]))
        keyed = stack.enter_context(TlsServer(args=[*flags(late_file), "--tlsMode", "requireTLS", "--keyFile", keys.key]))
        plain = stack.enter_context(TlsServer(args=["--replSet", "rs"]))
        with pymongo.MongoClient(uri(servers, "rs"), username="root", password=PASSWORD, **options(certificates)) as client:
            for at, server in ((3, late), (4, stranger), (5, keyed), (6, plain)):
                config = client.admin.command("replSetGetConfig")["config"]
                config["version"] += 1
                config["members"].append({"_id": at, "host": f"127.0.0.1:{server.port}", "priority": 0, "votes": 0})
                client.admin.command("replSetReconfig", config)
            states = lambda: {m["_id"]: m["stateStr"] for m in client.admin.command("replSetGetStatus")["members"]}
            wait_for("a fourth member", lambda: states()[3] == "SECONDARY")
            assert states()[4] not in ("SECONDARY", "RECOVERING", "STARTUP2"), states()
        told = lambda: any("its certificate is not one of a member" in server.log_path.read_text() for server in servers)
        wait_for("a word about the stranger", told, seconds=60)
        # Each is named, whatever it is that keeps it apart.
        for server, why in ((stranger, "its certificate is not one of a member: CN=stranger,OU=others,O=Sheaf"), (keyed, "it ends each link at once"), (plain, "there is no TLS with it")):
            line = f'"host":"127.0.0.1:{server.port}","why":"{why}'
            wait_for(line, lambda: any(line in other.log_path.read_text() for other in servers), seconds=120)


def a_cluster():
    """Routers, config servers and shards that speak nothing but TLS; members show certificates of their own for each other."""
    with contextlib.ExitStack() as stack:
        certificates = stack.enter_context(Certificates())
        ca = certificates.authority("inner")
        both = certificates.folder / "both.pem"
        both.write_text((certificates.folder / "ca.pem").read_text() + (certificates.folder / "inner.pem").read_text())
        certificates.server = certificates.signed("server", f"{MEMBER}server")
        inner = certificates.signed("member", f"{MEMBER}inner", ca="inner", password="secret-17")
        assert ca
        flags = [
            *certificates.flags("requireTLS"), "--clusterAuthMode", "x509", "--tlsClusterFile", inner,
            "--tlsClusterPassword", "secret-17", "--tlsClusterCAFile", str(both),
        ]
        config = stack.enter_context(TlsServer(args=["--configsvr", "--replSet", "c", *flags]))
        shards = [stack.enter_context(TlsServer(args=["--shardsvr", "--replSet", f"s{at}", *flags])) for at in range(2)]
        initiate([config], "c", certificates, configsvr=True)
        for at, shard in enumerate(shards):
            initiate([shard], f"s{at}", certificates)
        router = stack.enter_context(TlsRouter(f"c/127.0.0.1:{config.port}", args=flags))
        with direct(router, certificates) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = direct(router, certificates, user="root", password=PASSWORD)
        for at, shard in enumerate(shards):
            root.admin.command("addShard", f"s{at}/127.0.0.1:{shard.port}")
        root.admin.command("shardCollection", "lib.books", key={"_id": "hashed"})
        root.lib.books.insert_many([{"_id": at, "n": at} for at in range(200)])
        assert sum(document["n"] for document in root.lib.books.find()) == 19900
        with root.start_session() as session, session.start_transaction():
            root.lib.books.update_many({}, {"$inc": {"n": 1}}, session=session)
        with root.lib.books.watch(max_await_time_ms=5000) as stream:
            root.lib.books.insert_one({"_id": 1000})
            assert wait_for("an event", stream.try_next)["documentKey"] == {"_id": 1000}
        shown = root.admin.command("getCmdLineOpts")
        assert "secret-17" not in str(shown) and shown["parsed"]["net"]["tls"]["mode"] == "requireTLS", shown
        assert "SSLServerCertificateExpirationDate" in root.admin.command("serverStatus")["security"]


def one_process():
    """`sheaf server --shards` with TLS."""
    with Certificates() as certificates:
        with TlsServer(args=["--shards", "2", "--auth", *certificates.flags("requireTLS")]) as server:
            with direct(server, certificates) as client:
                wait_for("the first user", lambda: client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"]))
            root = direct(server, certificates, user="root", password=PASSWORD)
            root.admin.command("shardCollection", "lib.c", key={"_id": "hashed"})
            root.lib.c.insert_many([{"_id": at} for at in range(50)])
            assert root.lib.c.count_documents({}) == 50


CHECKS = {
    "TLS rolling": rolling_change,
    "TLS parameters": by_parameters,
    "TLS cluster": a_cluster,
    "TLS one process": one_process,
}
