"""A replica set that answers only who speaks TLS and, when it has come up, only who proves who he is."""

import base64
import os
import time

import pymongo
from pymongo.errors import PyMongoError
from sheaf_process import cache_dir
from tls import TlsServer

NAME = "rs"


def suite_flags(certificates):
    """What the borrowed suites' servers are started with: the certificates are PyMongo's, clients need none."""
    return [
        "--auth", "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(certificates / "server.pem"),
        "--tlsCAFile", str(certificates / "ca.pem"), "--tlsAllowConnectionsWithoutCertificates", "--setParameter", "enableTestCommands=1",
    ]


def members_key():
    """The file with the members' key: any will do, and it is kept, as nobody is left who would remove it."""
    path = cache_dir() / "suite-members-key"
    if not path.exists():
        made = path.with_name(f"{path.name}.{os.getpid()}")
        made.write_text(base64.b64encode(os.urandom(48)).decode())
        made.chmod(0o400)
        made.replace(path)
    return str(path)


def start_set(certificates, user, password, roles=("root",), count=3):
    """Starts a set, makes its first user, waits until all members follow; its servers, the primary first."""
    flags = [*suite_flags(certificates), "--replSet", NAME, "--keyFile", members_key()]
    servers = [TlsServer(args=flags) for _ in range(count)]
    for server in servers:
        server.start()
    options = {"directConnection": True, "tls": True, "tlsCAFile": str(certificates / "ca.pem"), "serverSelectionTimeoutMS": 60_000}
    config = {
        "_id": NAME,
        # One of them is meant to lead: the suites connect to the first. The certificates name this host.
        "members": [{"_id": at, "host": f"localhost:{server.port}", "priority": 2 if at == 0 else 1} for at, server in enumerate(servers)],
        # A busy machine is no reason for an election.
        "settings": {"electionTimeoutMillis": 10000, "heartbeatIntervalMillis": 2000},
    }
    with pymongo.MongoClient("localhost", servers[0].port, **options) as nobody:
        nobody.admin.command("replSetInitiate", config)
        within(120, lambda: nobody.admin.command("hello")["isWritablePrimary"], "a primary")
        nobody.admin.command("createUser", user, pwd=password, roles=list(roles))
    with pymongo.MongoClient("localhost", servers[0].port, username=user, password=password, **options) as client:
        states = lambda: sorted(member["stateStr"] for member in client.admin.command("replSetGetStatus")["members"])
        within(120, lambda: states() == ["PRIMARY", *["SECONDARY"] * (count - 1)], "members that follow")
    return servers


def within(seconds, condition, what):
    until = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except PyMongoError:
            pass  # It is not there yet.
        if time.monotonic() > until:
            raise RuntimeError(f"not in {seconds} s: {what}")
        time.sleep(0.1)
