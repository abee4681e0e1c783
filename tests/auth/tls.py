"""TLS: who speaks it, who has to, who is known by a certificate, and what is refused."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile

import pymongo
from common import connect, fails
from pymongo.errors import PyMongoError
from sheaf_process import Server, find_binary

PASSWORD = "pencil-7731"


class Certificates:
    """An authority and what it has signed, in a folder of its own."""

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-tls-"))
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
                     "-days", "30", "-subj", "/C=SE/O=Sheaf/CN=ca", "-addext", "basicConstraints=critical,CA:TRUE")
        self.ca = str(self.folder / "ca.pem")
        self.server = self.signed("server", "/C=SE/O=Sheaf/OU=servers/CN=localhost")
        self.ann = self.signed("ann", "/C=SE/O=Sheaf/OU=people, and more/CN=ann")
        self.bob = self.signed("bob", "/C=SE/O=Sheaf/OU=people/CN=bob")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def openssl(self, *arguments):
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def signed(self, name, subject, names="DNS:localhost,IP:127.0.0.1", ca="ca", days="30", password=None):
        """A certificate with its key in one file, signed by an authority of this folder."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial",
                     "-out", f"{name}.crt", "-days", days, "-extfile", f"{name}.ext")
        if password:
            self.openssl("pkcs8", "-topk8", "-in", f"{name}.key", "-out", f"{name}.enc", "-passout", f"pass:{password}")
            os.replace(self.folder / f"{name}.enc", self.folder / f"{name}.key")
        both = self.folder / f"{name}.pem"
        both.write_text((self.folder / f"{name}.crt").read_text() + (self.folder / f"{name}.key").read_text())
        return str(both)

    def authority(self, name):
        """Another authority; gives its file."""
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem",
                     "-days", "30", "-subj", f"/C=SE/O=Sheaf/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE")
        return str(self.folder / f"{name}.pem")

    def flags(self, mode, *more):
        return ["--tlsMode", mode, "--tlsCertificateKeyFile", self.server, "--tlsCAFile", self.ca, *more]


class TlsServer(Server):
    """A server that answers only who speaks TLS."""

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False


def by_tls(server, certificates, name=None, **options):
    if name is not None:
        options["tlsCertificateKeyFile"] = getattr(certificates, name)
    return connect(server, tls=True, tlsCAFile=certificates.ca, **options)


def unreachable(client):
    with client:
        try:
            client.admin.command("ping")
        except PyMongoError:
            return True
    return False


def modes():
    with Certificates() as certificates:
        with TlsServer(args=certificates.flags("requireTLS", "--auth")) as server:
            short = {"serverSelectionTimeoutMS": 1500}
            assert unreachable(pymongo.MongoClient("127.0.0.1", server.port, directConnection=True, **short))
            # Certificates are asked for.
            no_certificate = pymongo.MongoClient(
                "localhost", server.port, directConnection=True, tls=True, tlsCAFile=certificates.ca, **short
            )
            assert unreachable(no_certificate)
            with by_tls(server, certificates, "ann") as client:
                client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
            root = by_tls(server, certificates, "ann", user="root", password=PASSWORD)
            everything(root)
            by_certificate(server, certificates, root)
            root.admin.command("rotateCertificates")
            os.remove(certificates.server)
            fails(140, lambda: root.admin.command("rotateCertificates"))
            root.admin.command("ping")
        certificates.server = certificates.signed("server", "/CN=localhost")
        flags = certificates.flags("allowTLS", "--tlsAllowConnectionsWithoutCertificates", "--tlsDisabledProtocols", "TLS1_2")
        with Server(args=flags) as server:
            with connect(server) as plain, by_tls(server, certificates) as client:
                plain.lib.c.insert_one({"_id": 1})
                assert client.lib.c.count_documents({}) == 1
            for version, works in [(ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)]:
                context = ssl.create_default_context(cafile=certificates.ca)
                context.minimum_version = context.maximum_version = version
                assert speaks(server, context) == works, version
            with by_tls(server, certificates) as client:
                told = client.admin.command("serverStatus")["transportSecurity"]
                assert told["1.3"] > 1 and told["1.2"] == 0 and set(told) == {"1.0", "1.1", "1.2", "1.3", "unknown"}, told


def warnings():
    """What is meant for a trial is told of at each start, where shells show it."""
    def told(*flags):
        with Server(args=certificates.flags("allowTLS", *flags)) as server, connect(server) as client:
            lines = [json.loads(line) for line in client.admin.command("getLog", "startupWarnings")["log"]]
        assert all(line["s"] == "W" for line in lines), lines
        return {line["id"] for line in lines} & {22120, 22124, 22128, 22138}

    always = {22138} if os.geteuid() == 0 else set()
    with Certificates() as certificates:
        assert told() == {22120, *always}
        assert told("--tlsAllowInvalidCertificates") == {22120, 22124, *always}
        assert told("--tlsAllowInvalidCertificates", "--tlsAllowInvalidHostnames") == {22120, 22124, 22128, *always}
        # No other member would take it, and this one says so.
        for authority, doubted in ((certificates.ca, False), (certificates.authority("other"), True)):
            flags = ["--tlsCertificateKeyFile", certificates.server, "--tlsCAFile", authority, "--replSet", "rs"]
            with Server(args=["--tlsMode", "preferTLS", "--clusterAuthMode", "x509", *flags]) as server:
                assert ('"id":99000081' in server.log_path.read_text()) == doubted


def speaks(server, context):
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            with context.wrap_socket(wire, server_hostname="localhost"):
                return True
    except (ssl.SSLError, ConnectionError):
        return False


def everything(root):
    """Small and large messages in both directions, and close together, so that a thread takes the connection."""
    books = root.lib.books
    large = "x" * 3_000_000
    books.insert_many([{"_id": at, "text": large} for at in range(8)])
    assert [document["text"] == large for document in books.find().sort("_id", 1)] == 8 * [True]
    for at in range(500):
        books.update_one({"_id": at % 8}, {"$inc": {"n": 1}})
    assert sum(document["n"] for document in books.find({}, {"n": 1})) == 500
    books.drop()


def by_certificate(server, certificates, root):
    """A user of `$external` is known by the certificate's subject."""
    subject = "CN=ann,OU=people\\, and more,O=Sheaf,C=SE"
    with by_tls(server, certificates, "ann", authMechanism="MONGODB-X509", authSource="$external") as nobody:
        fails(18, lambda: nobody.lib.books.find_one())
    root["$external"].command("createUser", subject, roles=[{"role": "read", "db": "lib"}])
    with by_tls(server, certificates, "ann", authMechanism="MONGODB-X509", authSource="$external") as ann:
        assert ann.lib.books.find_one() is None
        users = ann.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        assert users == [{"user": subject, "db": "$external"}], users
        fails(13, lambda: ann.lib.books.insert_one({}))
    with by_tls(server, certificates, "bob") as bob:
        # Another's name is not believed.
        fails(18, lambda: bob["$external"].command("authenticate", 1, mechanism="MONGODB-X509", user=subject))
        fails(18, lambda: bob["$external"].command("authenticate", 1, mechanism="MONGODB-X509"))


def members_names():
    """Nobody may be called as a member's certificate is: the day that members are known by theirs, he would be one."""
    subject, words = "CN=two,OU=servers,O=Sheaf,C=SE", "would be recognized as an internal cluster member"
    x509 = {"authMechanism": "MONGODB-X509", "authSource": "$external"}
    with Certificates() as certificates:
        certificates.two = certificates.signed("two", "/C=SE/O=Sheaf/OU=servers/CN=two")
        flags = certificates.flags("requireTLS", "--auth")
        with TlsServer(args=flags) as server:
            with by_tls(server, certificates, "ann") as client:
                client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
            root = by_tls(server, certificates, "ann", user="root", password=PASSWORD)["$external"]
            fails(2, lambda: root.command("createUser", subject, roles=[]), words)
            root.command("createUser", "CN=two,OU=people,O=Sheaf,C=SE", roles=[])
            with by_tls(server, certificates, "two", **x509) as client:
                fails(18, lambda: client.lib.c.find_one(), "can only be used for cluster authentication")
        with TlsServer(args=[*flags, "--setParameter", "enforceUserClusterSeparation=false"]) as server:
            with by_tls(server, certificates, "ann") as client:
                client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
            root = by_tls(server, certificates, "ann", user="root", password=PASSWORD)["$external"]
            root.command("createUser", subject, roles=[])
            with by_tls(server, certificates, "two", **x509) as client:
                users = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
                assert users == [{"user": subject, "db": "$external"}], users


def passwords_of_keys():
    """The password of a key does not stay where every account of the machine can read it."""
    with Certificates() as certificates:
        certificates.server = certificates.signed("server", "/C=SE/O=Sheaf/OU=servers/CN=localhost", password=PASSWORD)
        for form in (["--tlsCertificateKeyFilePassword", PASSWORD], [f"--tlsCertificateKeyFilePassword={PASSWORD}"]):
            with TlsServer(args=certificates.flags("requireTLS", *form)) as server, by_tls(server, certificates, "ann") as client:
                shown = client.admin.command("getCmdLineOpts")
                line = pathlib.Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
                assert b"<password>" in line and PASSWORD.encode() not in line, line
                assert PASSWORD not in str(shown) and "<password>" in str(shown["argv"]), shown


def refused_flags():
    with Certificates() as certificates:
        encrypted = certificates.folder / "encrypted.pem"
        certificates.openssl("pkcs8", "-topk8", "-in", "server.key", "-out", "encrypted.key", "-passout", "pass:secret")
        encrypted.write_text(
            (certificates.folder / "server.crt").read_text() + (certificates.folder / "encrypted.key").read_text()
        )
        for flags, words in [
            (["--tlsMode", "requireTLS"], "need tlsCertificateKeyFile"),
            (["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", certificates.server], "chain of trust"),
            (["--tlsMode", "sometimes"], "unsupported value"),
            (["--tlsCAFile", certificates.ca], "need to enable TLS"),
            (certificates.flags("requireTLS", "--tlsFIPSMode"), "FIPS mode"),
            (certificates.flags("requireTLS", "--tlsDisabledProtocols", "TLS1_2,TLS1_3"), "All valid TLS modes disabled"),
            (["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", str(encrypted), "--tlsCAFile", certificates.ca], "no password is given"),
            (["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", str(encrypted), "--tlsCAFile", certificates.ca,
              "--tlsCertificateKeyFilePassword", "wrong"], "cannot decrypt the key"),
            (certificates.flags("allowTLS", "--replSet", "rs", "--clusterAuthMode", "x509"), "in allowTLS mode"),
            (["--replSet", "rs", "--clusterAuthMode", "x509"], "need to enable TLS"),
            (certificates.flags("requireTLS", "--tlsClusterPassword", "x"), "without tlsClusterFile"),
            (certificates.flags("requireTLS", "--replSet", "rs", "--clusterAuthMode", "x509", "--tlsClusterFile", certificates.ann), "no member takes"),
            (certificates.flags("requireTLS", "--replSet", "rs", "--clusterAuthMode", "x509", "--tlsClusterAuthX509Attributes", "OU=others"),
             "no member takes"),
            (["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", certificates.ca, "--tlsCAFile", certificates.ca], "cannot read the key"),
        ]:
            done = subprocess.run(
                [find_binary(), "server", "--dbpath", str(certificates.folder / "data"), *flags],
                capture_output=True, text=True, timeout=60,
            )
            assert done.returncode == 2 and words in done.stderr, (flags, done)


CHECKS = {"TLS flags": refused_flags, "TLS warnings": warnings, "TLS": modes, "TLS members' names": members_names, "TLS keys' passwords": passwords_of_keys}
