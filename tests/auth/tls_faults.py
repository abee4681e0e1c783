"""TLS that goes wrong: certificates that are not to be believed, bytes that are no TLS, handshakes that are never ended."""

import concurrent.futures
import contextlib
import pathlib
import socket
import ssl
import subprocess
import threading
import time

import pymongo
from common import command_fails, connect
from members import Keys, wait_for
from pymongo.errors import PyMongoError
from sheaf_process import find_binary
from tls import Certificates, TlsServer, by_tls, unreachable



def hurried(server, **options):
    """One that does not wait long."""
    return pymongo.MongoClient(server.uri, serverSelectionTimeoutMS=2000, **options)


def certificates_that_are_not_believed():
    """Another authority, one that has ended, one of another host; and what the flags take all the same."""
    with Certificates() as certificates:
        other = certificates.authority("other")
        carl = certificates.signed("carl", "/O=Sheaf/CN=carl", ca="other")
        old = certificates.signed("old", "/O=Sheaf/CN=old", days="0")
        elsewhere = certificates.signed("elsewhere", "/O=Sheaf/OU=servers/CN=elsewhere", names="DNS:elsewhere.example")
        time.sleep(1.5)
        with TlsServer(args=certificates.flags("requireTLS")) as server:
            assert unreachable(hurried(server, tls=True, tlsCAFile=other, tlsCertificateKeyFile=certificates.ann))
            for wrong in (carl, old):
                assert unreachable(hurried(server, tls=True, tlsCAFile=certificates.ca, tlsCertificateKeyFile=wrong)), wrong
            with by_tls(server, certificates, "ann") as client:
                client.admin.command("ping")
                assert client.admin.command("serverStatus")["security"]["SSLServerSubjectName"] == "CN=localhost,OU=servers,O=Sheaf,C=SE"
            log = server.log_path.read_text()
            assert "UnknownIssuer" in log and "expired" in log.lower(), log[-3000:]
        # A server whose own certificate ends soon says so; with one that has ended it does not start.
        with TlsServer(args=[*certificates.flags("requireTLS"), "--setParameter", "tlsX509ExpirationWarningThresholdDays=40"]) as server:
            told(server, "Server certificate will expire soon")
        certificates.server = old
        does_not_start(certificates.flags("requireTLS"), "The provided SSL certificate is expired or not yet valid")
        # Any certificate is taken, and names nobody.
        certificates.server = certificates.signed("server", "/O=Sheaf/OU=servers/CN=localhost")
        with TlsServer(args=certificates.flags("requireTLS", "--auth", "--tlsAllowInvalidCertificates")) as server:
            options = {"tls": True, "tlsCAFile": certificates.ca, "tlsCertificateKeyFile": carl}
            with connect(server, **options) as client:
                client.admin.command("createUser", "root", pwd="pencil-7731", roles=["root"])
            with connect(server, "root", "pencil-7731", **options) as client:
                client["$external"].command("createUser", "CN=carl,O=Sheaf", roles=[])
            with connect(server, authMechanism="MONGODB-X509", authSource="$external", **options) as client:
                try:
                    client.lib.c.find_one()
                    raise AssertionError("a certificate that nobody has signed names somebody")
                except PyMongoError:
                    pass
        # Members whose certificates name another host find each other only where that may be.
        certificates.server = elsewhere
        for more, works in [((), False), (("--tlsAllowInvalidHostnames",), True)]:
            assert set_comes_up(certificates, more) == works, more


def does_not_start(flags, words):
    done = subprocess.run([find_binary(), "server", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and words in done.stderr, (flags, done)


def files_that_are_wrong():
    """A list of revocations that is none, a certificate that has ended: neither at the start nor by rotateCertificates."""
    with Certificates() as certificates:
        folder = certificates.folder
        (folder / "index.txt").write_text("")
        (folder / "ca.cnf").write_text("[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\ndefault_md=sha256\n"
            "crl_extensions=more\n[more]\nauthorityKeyIdentifier=keyid\n")
        ca = ("ca", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key")
        certificates.openssl(*ca, "-revoke", "bob.crt")
        certificates.openssl(*ca, "-gencrl", "-crldays", "30", "-out", "crl.pem")
        lists, good = folder / "crl.pem", (folder / "crl.pem").read_text()
        own, before = pathlib.Path(certificates.server), pathlib.Path(certificates.server).read_text()
        ended = pathlib.Path(certificates.signed("old", "/C=SE/O=Sheaf/OU=servers/CN=localhost", days="0")).read_text()
        flags = certificates.flags("requireTLS", "--tlsCRLFile", str(lists))
        for none in ("", "hello", pathlib.Path(certificates.ca).read_text()):
            lists.write_text(none)
            does_not_start(flags, "crl.pem has no list of revocations")
        lists.write_text("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n")
        does_not_start(flags, "crl.pem: ")
        certificates.openssl(*ca, "-gencrl", "-crl_lastupdate", "200101000000Z", "-crl_nextupdate", "200102000000Z", "-out", "old.pem")
        old = (folder / "old.pem").read_text()
        lists.write_text(old)
        does_not_start(flags, "crl.pem: the list of revocations has ended")
        lists.write_text(good)
        time.sleep(1.5)
        with TlsServer(args=flags) as server:
            bob = {"tls": True, "tlsCAFile": certificates.ca, "tlsCertificateKeyFile": certificates.bob}
            assert unreachable(hurried(server, **bob))
            with by_tls(server, certificates, "ann") as client:
                for path, wrong, right in ((lists, "", good), (lists, old, good), (own, ended, before)):
                    path.write_text(wrong)
                    command_fails(140, client.admin, "rotateCertificates")
                    path.write_text(right)
            assert "CN=soon" not in server.log_path.read_text()
            # What was read before holds on.
            assert unreachable(hurried(server, **bob))
            with by_tls(server, certificates, "ann") as client:
                # A list that holds for long is not told of.
                assert client.admin.command("rotateCertificates")["ok"] == 1
                end = client.admin.command("serverStatus")["security"]["tlsCRLExpirationDate"]
                assert "99000082" not in server.log_path.read_text()
                certificates.openssl(*ca, "-gencrl", "-crldays", "2", "-out", "short.pem")
                lists.write_text((folder / "short.pem").read_text())
                assert client.admin.command("rotateCertificates")["ok"] == 1
                assert client.admin.command("serverStatus")["security"]["tlsCRLExpirationDate"] < end
            told(server, '"id":99000082')
            lists.write_text(good)
        # The certificate for other servers is watched, too.
        soon = certificates.signed("soon", "/C=SE/O=Sheaf/OU=servers/CN=soon", days="10")
        with TlsServer(args=[*flags, "--tlsClusterFile", soon, "--setParameter", "tlsX509ExpirationWarningThresholdDays=20"]) as server:
            told(server, '"certSubject":"CN=soon,')


def certificates_change_during_handshakes():
    """While certificates are read anew again and again whoever connects is served, by the old one or the new one."""
    with Certificates() as certificates:
        own = pathlib.Path(certificates.server)
        both = [own.read_text(), pathlib.Path(certificates.signed("next", "/C=SE/O=Sheaf/OU=servers/CN=localhost")).read_text()]
        context = ssl.create_default_context(cafile=certificates.ca)
        context.load_cert_chain(certificates.ann)
        ended = threading.Event()

        def connect_on_and_on(_):
            shown = []
            while not ended.is_set() or not shown:
                with socket.create_connection(("127.0.0.1", server.port), 60) as plain:
                    with context.wrap_socket(plain, server_hostname="localhost") as wire:
                        shown.append(wire.getpeercert()["serialNumber"])
            return shown

        with TlsServer(args=certificates.flags("requireTLS")) as server, by_tls(server, certificates, "ann") as client:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                connecting = [pool.submit(connect_on_and_on, at) for at in range(4)]
                try:
                    for turn in range(20):
                        new = own.with_suffix(".new")
                        new.write_text(both[turn % 2])
                        new.replace(own)
                        assert client.admin.command("rotateCertificates")["ok"] == 1
                        before = connections_made(client)
                        wait_for("somebody who comes", lambda: connections_made(client) > before + 4)
                finally:
                    ended.set()
                shown = [serial for one in connecting for serial in one.result()]
        assert len(set(shown)) == 2, set(shown)


def connections_made(client):
    return client.admin.command("serverStatus")["connections"]["totalCreated"]


def told(server, words):
    wait_for(words, lambda: words in server.log_path.read_text(), seconds=60)


def set_comes_up(certificates, more):
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(Keys())
        flags = [*certificates.flags("requireTLS", *more), "--replSet", "rs", "--keyFile", keys.key]
        servers = [stack.enter_context(TlsServer(args=flags)) for _ in range(2)]
        members = [{"_id": at, "host": f"127.0.0.1:{server.port}"} for at, server in enumerate(servers)]
        insecure = {"tls": True, "tlsCAFile": certificates.ca, "tlsCertificateKeyFile": certificates.ann, "tlsAllowInvalidHostnames": True}
        with connect(servers[0], **insecure) as client:
            said = ""
            try:
                client.admin.command("replSetInitiate", {"_id": "rs", "members": members})
            except PyMongoError as error:
                said = str(error)
            until = time.monotonic() + (30 if more else 5)
            while time.monotonic() < until:
                if client.admin.command("hello")["isWritablePrimary"]:
                    return True
                time.sleep(0.1)
        # The side that refuses answers why; the other has its alert in the log.
        said += "".join(server.log_path.read_text() for server in servers)
        assert "not valid for name" in said or "BadCertificate" in said, said
        return False


def ends(connection, seconds):
    """Whether the other side ends the connection in time; what it has sent before."""
    connection.settimeout(seconds)
    received = b""
    try:
        while True:
            got = connection.recv(4096)
            if not got:
                return True, received
            received += got
    except ConnectionError:
        return True, received
    except TimeoutError:
        return False, received


def client_hello(certificates):
    """The first bytes of a client that speaks TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = ssl.create_default_context(cafile=certificates.ca).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        wrapped.do_handshake()
    return outgoing.read()


def bytes_that_are_none():
    """Plain bytes at a port of TLS, TLS at a plain port, records that are cut or altered, half a handshake."""
    with Certificates() as certificates:
        hello = client_hello(certificates)
        with TlsServer(args=certificates.flags("requireTLS", "--auth")) as server:
            dial = lambda: socket.create_connection(("127.0.0.1", server.port), timeout=5)
            for sent in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x16\x03\x01\xff\xff" + bytes(20), hello[:5] + bytes(len(hello) - 5)):
                with dial() as connection:
                    connection.sendall(sent)
                    ended, received = ends(connection, 15)
                    assert ended and len(received) < 64, (sent[:20], received)
            # Half a handshake: the time limit is ten seconds.
            began = time.monotonic()
            with dial() as connection:
                connection.sendall(hello[: len(hello) // 2])
                ended, _ = ends(connection, 20)
                assert ended and 5 < time.monotonic() - began < 18, time.monotonic() - began
            altered_records(server, certificates)
        with TlsServer(args=[]) as server:
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
                connection.sendall(hello)
                ended, received = ends(connection, 15)
                assert ended and len(received) < 64, received


def altered_records(server, certificates):
    """What is altered on the way ends the connection; so does the end of the network within a record."""
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(certificates.ann)
    for spoil in (lambda record: record[:-1] + bytes([record[-1] ^ 1]), lambda record: record[:10]):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            wrapped = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    wrapped.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    wire.sendall(outgoing.read())
                    incoming.write(wire.recv(65536))
            wire.sendall(outgoing.read())
            wrapped.write(bytes(100))
            wire.sendall(spoil(outgoing.read()))
            wire.shutdown(socket.SHUT_WR)
            assert ends(wire, 15)[0]


def threads(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()))


def many_handshakes():
    """Hundreds of handshakes that nobody ends hold no thread, and others are served beside them."""
    with Certificates() as certificates:
        half = client_hello(certificates)[:40]
        with TlsServer(args=certificates.flags("requireTLS")) as server, contextlib.ExitStack() as stack:
            with by_tls(server, certificates, "ann", maxPoolSize=1) as client:
                client.admin.command("ping")
                before = threads(server)
                for _ in range(400):
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                    connection.sendall(half)
                began = time.monotonic()
                for _ in range(200):
                    client.lib.c.insert_one({})
                assert time.monotonic() - began < 20
                assert threads(server) <= before + 4, (before, threads(server))
                # New ones come through as well.
                with by_tls(server, certificates, "ann") as more:
                    assert more.lib.c.count_documents({}) == 200


CHECKS = {
    "TLS certificates": certificates_that_are_not_believed,
    "TLS files": files_that_are_wrong,
    "TLS bytes": bytes_that_are_none,
    "TLS certificates' change": certificates_change_during_handshakes,
    "TLS handshakes": many_handshakes,
}
