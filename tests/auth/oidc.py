"""`MONGODB-OIDC`: tokens of an identity provider that this test is, with PyMongo's callback and with messages of its own."""

import base64
import http.server
import json
import pathlib
import shutil
import ssl
import subprocess
import tempfile
import threading
import time

import bson
import pymongo
from common import command_fails, connect, fails
from pymongo.auth_oidc import OIDCCallback, OIDCCallbackResult
from sheaf_process import Server, find_binary, free_port
from tls import Certificates

PASSWORD = "pencil-7731"
EXPIRED = 391


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Key:
    """A key pair, made and used by openssl."""

    def __init__(self, folder, kid, kind="rsa"):
        self.kid, self.kind, self.path = kid, kind, folder / f"{kid}.pem"
        option = ["RSA", "-pkeyopt", "rsa_keygen_bits:2048"] if kind == "rsa" else ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
        self.openssl("genpkey", "-algorithm", *option, "-out", str(self.path))

    def openssl(self, *arguments, data=None):
        done = subprocess.run(["openssl", *arguments], input=data, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jwk(self):
        if self.kind == "rsa":
            text = self.openssl("rsa", "-in", str(self.path), "-noout", "-modulus").decode()
            modulus = bytes.fromhex(text.strip().removeprefix("Modulus="))
            return {"kty": "RSA", "kid": self.kid, "use": "sig", "n": encode(modulus), "e": "AQAB"}
        point = self.openssl("pkey", "-in", str(self.path), "-pubout", "-outform", "DER")[-64:]
        return {"kty": "EC", "crv": "P-256", "kid": self.kid, "x": encode(point[:32]), "y": encode(point[32:])}

    def token(self, algorithm=None, **claims):
        algorithm = algorithm or ("RS256" if self.kind == "rsa" else "ES256")
        header = {"alg": algorithm, "typ": "JWT", "kid": self.kid}
        signed = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
        if algorithm == "none":
            return signed + "."
        digest = f"-sha{algorithm[2:]}"
        padding = ["-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:digest"] if algorithm.startswith("PS") else []
        mark = self.openssl("dgst", digest, "-sign", str(self.path), *padding, data=signed.encode())
        if self.kind == "ec":
            mark = b"".join(number.to_bytes(32, "big") for number in numbers(mark))
        return f"{signed}.{encode(mark)}"


def numbers(der):
    """The two numbers of a signature in DER."""
    at, found = 2, []
    for _ in range(2):
        length = der[at + 1]
        found.append(int.from_bytes(der[at + 2:at + 2 + length], "big"))
        at += 2 + length
    return found


class Issuer:
    """An identity provider: an address with a configuration and a key set."""

    def __init__(self, context=None, chunked=False):
        """With `context` by HTTPS; `chunked` answers come in pieces, and who asks by HTTP/1.0 gets none."""
        self.context, self.chunked = context, chunked

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-oidc-"))
        self.key, self.other, self.foreign = Key(self.folder, "one"), Key(self.folder, "two", "ec"), Key(self.folder, "three")
        self.keys = [self.key, self.other]
        self.asked = 0
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/.well-known/openid-configuration":
                    body = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                elif self.path == "/keys":
                    issuer.asked += 1
                    body = {"keys": [key.jwk() for key in issuer.keys]}
                else:
                    self.send_error(404)
                    return
                self.answer(json.dumps(body).encode())

            def answer(self, body):
                if not issuer.chunked:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(body)
                elif self.request_version != "HTTP/1.1":
                    self.send_error(426)
                else:
                    # The connection stays open as long as the client likes.
                    self.protocol_version, self.close_connection = "HTTP/1.1", False
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for at in range(0, len(body), 100):
                        piece = body[at:at + 100]
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        if self.context:
            self.http.socket = self.context.wrap_socket(self.http.socket, server_side=True)
            self.url = f"https://localhost:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def token(self, key=None, algorithm=None, **claims):
        claims = {"iss": self.url, "aud": "sheaf", "sub": "ann", "groups": ["readers"], "exp": time.time() + 600, **claims}
        return (key or self.key).token(algorithm, **{name: value for name, value in claims.items() if value is not None})

    def flags(self, *providers):
        return [
            "--auth", "--setParameter", "authenticationMechanisms=SCRAM-SHA-256,MONGODB-OIDC",
            "--setParameter", f"oidcIdentityProviders={json.dumps(providers)}",
            "--setParameter", "JWKSMinimumQuiescePeriodSecs=0",
        ]

    def provider(self, **more):
        return {"issuer": self.url, "audience": "sheaf", "authNamePrefix": "idp", "clientId": "it", "authorizationClaim": "groups", **more}


class Tokens(OIDCCallback):
    """Gives tokens to PyMongo, and counts."""

    def __init__(self, make):
        self.make, self.given = make, 0

    def fetch(self, context):
        self.given += 1
        return OIDCCallbackResult(access_token=self.make(), expires_in_seconds=600)


def by_callback(server, callback, **options):
    # Retries go by another connection or by the same: a token that is refused for good fails either way.
    return pymongo.MongoClient(
        server.uri, authMechanism="MONGODB-OIDC", authMechanismProperties={"OIDC_CALLBACK": callback},
        serverSelectionTimeoutMS=20_000, **options
    )


def one_step(server, token, action=None):
    """Shows a token on a connection of its own."""
    with connect(server, maxPoolSize=1) as client:
        external = client["$external"]
        answer = external.command("saslStart", mechanism="MONGODB-OIDC", payload=bson.encode({"jwt": token}))
        assert answer["done"] and answer["payload"] == b"", answer
        return action(client) if action else client.admin.command("connectionStatus")["authInfo"]


def prepare(server):
    with connect(server) as client:
        client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
    root = connect(server, "root", PASSWORD)
    root.lib.books.insert_one({"_id": 1})
    root.admin.command("createRole", "idp/readers", privileges=[], roles=[{"role": "read", "db": "lib"}])
    root["$external"].command("createUser", "local/bob", roles=[{"role": "readWrite", "db": "lib"}])
    return root


def tokens_that_hold(server, issuer, root):
    callback = Tokens(issuer.token)
    with by_callback(server, callback) as client:
        assert client.lib.books.find_one() == {"_id": 1}
        fails(13, lambda: client.lib.books.insert_one({}))
        told = client.admin.command("connectionStatus")["authInfo"]
        assert told["authenticatedUsers"] == [{"user": "idp/ann", "db": "$external"}], told
        roles = {(role["role"], role["db"]) for role in told["authenticatedUserRoles"]}
        assert roles == {("idp/readers", "admin"), ("read", "lib")}, told
        # A change of the role holds at once.
        root.admin.command("grantRolesToRole", "idp/readers", roles=[{"role": "readWrite", "db": "lib"}])
        client.lib.books.insert_one({"_id": 2})
        root.admin.command("revokeRolesFromRole", "idp/readers", roles=[{"role": "readWrite", "db": "lib"}])
        fails(13, lambda: client.lib.books.insert_one({}))
    assert callback.given == 1
    for token in [
        issuer.token(issuer.other), issuer.token(algorithm="RS512"), issuer.token(algorithm="PS256"),
        issuer.token(aud=["x", "sheaf"]), issuer.token(groups="readers"), issuer.token(nbf=time.time() - 1),
    ]:
        assert one_step(server, token)["authenticatedUsers"] == [{"user": "idp/ann", "db": "$external"}]
    assert len(one_step(server, issuer.token(groups=["nonesuch"]))["authenticatedUserRoles"]) == 0
    # The other provider has its users here.
    told = one_step(server, issuer.token(aud="machines", sub="bob"))
    assert told["authenticatedUsers"] == [{"user": "local/bob", "db": "$external"}], told
    assert told["authenticatedUserRoles"] == [{"role": "readWrite", "db": "lib"}], told
    fails(18, lambda: one_step(server, issuer.token(aud="machines", sub="nobody")))


def two_steps(server, issuer, _root):
    with connect(server, maxPoolSize=1) as client:
        external = client["$external"]
        for first in ({}, {"n": "ann"}):
            answer = external.command("saslStart", mechanism="MONGODB-OIDC", payload=bson.encode(first))
            assert not answer["done"], answer
            told = bson.decode(answer["payload"])
            assert told == {"issuer": issuer.url, "clientId": "it", "requestScopes": ["a", "b"]}, told
            conversation = answer["conversationId"]
            wrong = bson.encode({"jwt": issuer.token(sub="eve")})
            if first:
                command_fails(18, external, "saslContinue", conversationId=conversation, payload=wrong)
                answer = external.command("saslStart", mechanism="MONGODB-OIDC", payload=bson.encode(first))
            answer = external.command(
                "saslContinue", conversationId=answer["conversationId"], payload=bson.encode({"jwt": issuer.token()})
            )
            assert answer["done"], answer
        # Nobody becomes another one.
        other = bson.encode({"jwt": issuer.token(sub="eve")})
        command_fails(5626701, external, "saslStart", mechanism="MONGODB-OIDC", payload=other)


def tokens_that_do_not_hold(server, issuer, _root):
    now = time.time()
    for name, token in {
        "expired": issuer.token(exp=now - 1),
        "without an end": issuer.token(exp=None),
        "early": issuer.token(nbf=now + 60),
        "unsigned": issuer.token(algorithm="none"),
        "of a foreign key": issuer.token(issuer.foreign),
        "of a foreign issuer": issuer.token(iss="http://127.0.0.1:1"),
        "for others": issuer.token(aud="x"),
        "without a name": issuer.token(sub=None),
        "without roles": issuer.token(groups=None),
        "changed": issuer.token()[:-8] + "AAAAAAAA",
        "none": "x",
    }.items():
        try:
            fails(18, lambda: one_step(server, token), "Authentication failed.")
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    # The public key is no secret: a key that somebody has made of it signs nothing.
    forged = Key(issuer.folder, "forged")
    forged.kid = "one"
    fails(18, lambda: one_step(server, issuer.token(forged)))
    with connect(server, maxPoolSize=1) as client:
        for payload in (b"", b"x", bson.encode({"jwt": 1}), bson.encode({"n": 1}), bson.encode({}) + b"x"):
            command_fails(18, client["$external"], "saslStart", mechanism="MONGODB-OIDC", payload=payload)
        command_fails(18, client.admin, "saslStart", mechanism="MONGODB-OIDC", payload=bson.encode({"jwt": issuer.token()}))
        command_fails(13, client.lib, "find", "books")


def rights_end_with_the_token(server, issuer, _root):
    def expire(client):
        assert client.lib.command("find", "books")["ok"] == 1
        cursor = client.lib.command("find", "books", batchSize=1)["cursor"]["id"]
        wait = time.time() + 20
        while time.time() < wait:
            try:
                client.lib.command("find", "books")
                time.sleep(0.1)
            except pymongo.errors.OperationFailure as error:
                assert error.code == EXPIRED and error.details["codeName"] == "ReauthenticationRequired", error.details
                break
        else:
            raise AssertionError("a token does not end")
        assert client.admin.command("ping")["ok"] == 1
        assert client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"] == []
        command_fails(EXPIRED, client.lib, {"getMore": bson.Int64(cursor), "collection": "books"})
        # The same user comes again, and has its cursor.
        client["$external"].command("saslStart", mechanism="MONGODB-OIDC", payload=bson.encode({"jwt": issuer.token()}))
        client.lib.command({"getMore": bson.Int64(cursor), "collection": "books"})

    one_step(server, issuer.token(exp=time.time() + 6), expire)
    # Drivers do so by themselves.
    lives = [6, 600]
    callback = Tokens(lambda: issuer.token(exp=time.time() + lives[min(callback.given, 2) - 1]))
    with by_callback(server, callback, maxPoolSize=1) as client:
        assert client.lib.books.find_one() is not None
        time.sleep(6.5)
        assert client.lib.books.find_one() is not None
    assert callback.given == 2, callback.given


def keys_change(server, issuer, root):
    told = root.admin.command("oidcListKeys")["keySets"]
    assert [key["kid"] for key in told[issuer.url]["keys"]] == ["one", "two"], told

    def change(client):
        assert client.lib.command("find", "books")["ok"] == 1
        # A new key is asked for when a token names it.
        issuer.keys = [issuer.key, issuer.foreign]
        one_step(server, issuer.token(issuer.foreign))
        # Whoever came by one that is gone is nobody.
        command_fails(EXPIRED, client.lib, "find", "books")

    one_step(server, issuer.token(issuer.other), change)
    issuer.keys = [issuer.key, issuer.other]
    root.admin.command("oidcRefreshKeys", 1, identityProviders=["x"])
    asked = issuer.asked
    root.admin.command("oidcRefreshKeys")
    assert issuer.asked == asked + 1
    told = root.admin.command("oidcListKeys", 1, identityProviders=[issuer.url])["keySets"]
    assert [key["kid"] for key in told[issuer.url]["keys"]] == ["one", "two"], told
    one_step(server, issuer.token(), lambda client: command_fails(13, client.admin, "oidcListKeys"))


def no_token_is_shown(server, issuer, root):
    root.admin.command("setParameter", 1, logLevel=5)
    root.admin.command("profile", 2)
    token, bad = issuer.token(), issuer.token(exp=1)
    one_step(server, token)
    fails(18, lambda: one_step(server, bad))
    root.admin.command("profile", 0)
    root.admin.command("setParameter", 1, logLevel=0)
    texts = [str(entry) for entry in root.admin["system.profile"].find()]
    texts += [str(root.admin.command("getLog", "global")), server.log_path.read_text(errors="replace")]
    texts += [path.read_text(errors="replace") for path in issuer.folder.glob("audit*")]
    assert len(texts) > 2 and '"claims"' in texts[-1] and '"idp/ann"' in texts[-1], texts[-1][-2000:]
    for part in {part for text in (token, bad) for part in text.split(".")}:
        for text in texts:
            assert part not in text and part.encode().hex() not in text
            assert base64.b64encode(part.encode())[4:-4].decode() not in text


def providers_change(server, issuer, root):
    """Whoever has come in stays as long as the token would name the same."""
    told = root.admin.command("getParameter", 1, oidcIdentityProviders=1)["oidcIdentityProviders"]

    def change(client):
        assert client.lib.command("find", "books")["ok"] == 1
        for field, value in (("audience", "others"), ("authNamePrefix", "other"), ("authorizationClaim", "sub")):
            root.admin.command("setParameter", 1, oidcIdentityProviders=[{**told[0], field: value}, told[1]])
            command_fails(EXPIRED, client.lib, "find", "books")
            root.admin.command("setParameter", 1, oidcIdentityProviders=told)
            assert client.lib.command("find", "books")["ok"] == 1
        root.admin.command("setParameter", 1, oidcIdentityProviders=[{**told[0], "clientId": "another"}, told[1]])
        assert client.lib.command("find", "books")["ok"] == 1
        root.admin.command("setParameter", 1, oidcIdentityProviders=[])
        command_fails(13, client.lib, "find", "books")
        root.admin.command("setParameter", 1, oidcIdentityProviders=told)

    one_step(server, issuer.token(), change)


def parameters(server, issuer, root):
    told = root.admin.command("getParameter", 1, oidcIdentityProviders=1)["oidcIdentityProviders"]
    assert [provider["audience"] for provider in told] == ["sheaf", "machines"], told
    command_fails(14, root.admin, "setParameter", 1, oidcIdentityProviders="x")
    command_fails(40414, root.admin, "setParameter", 1, oidcIdentityProviders=[{"issuer": "x"}])
    # A key set may be a file.
    keys = issuer.folder / "keys.json"
    keys.write_text(json.dumps({"keys": [issuer.foreign.jwk()]}))
    other = {**issuer.provider(), "issuer": "https://idp.example", "JWKSFile": str(keys), "authNamePrefix": "file", "supportsHumanFlows": False}
    root.admin.command("setParameter", 1, oidcIdentityProviders=[other, *told])
    token = issuer.token(issuer.foreign, iss="https://idp.example")
    assert one_step(server, token)["authenticatedUsers"] == [{"user": "file/ann", "db": "$external"}]
    # Which one it is that cannot be read is told.
    for break_it in (lambda: keys.write_text("x"), keys.unlink):
        break_it()
        command_fails(96, root.admin, "oidcRefreshKeys", 1, identityProviders=["https://idp.example"], words=str(keys))
        # The keys that were known go on to be.
        assert one_step(server, token)["authenticatedUsers"] == [{"user": "file/ann", "db": "$external"}]
    # A file that is not there is not taken.
    command_fails(2, root.admin, "setParameter", 1, oidcIdentityProviders=[{**other, "audience": "else"}, *told], words=f"JWKSFile {keys}")
    started = subprocess.run(
        [str(find_binary()), "server", "--dbpath", str(issuer.folder), "--port", str(free_port()), *issuer.flags(other)], capture_output=True, timeout=120,
    )
    assert started.returncode == 2 and f"JWKSFile {keys}".encode() in started.stderr, started
    root.admin.command("setParameter", 1, oidcIdentityProviders=told)
    fails(18, lambda: one_step(server, token))


CHECKED = [
    tokens_that_hold, two_steps, tokens_that_do_not_hold, rights_end_with_the_token, keys_change, providers_change, no_token_is_shown, parameters,
]


def checked(server, issuer):
    root = prepare(server)
    for check in CHECKED:
        try:
            check(server, issuer, root)
        except (AssertionError, pymongo.errors.PyMongoError) as error:
            raise AssertionError(f"{check.__name__}: {error}") from error


def tokens():
    with Issuer() as issuer:
        machines = issuer.provider(audience="machines", authNamePrefix="local", useAuthorizationClaim=False, supportsHumanFlows=False)
        flags = issuer.flags(issuer.provider(requestScopes=["a", "b"]), machines)
        audit = ["--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", str(issuer.folder / "audit.json")]
        with Server(args=[*flags, *audit]) as server:
            checked(server, issuer)
        # Without the mechanism there are no tokens.
        with Server(args=["--setParameter", flags[4]]) as server:
            with connect(server) as client:
                payload = bson.encode({"jwt": issuer.token()})
                command_fails(334, client["$external"], "saslStart", mechanism="MONGODB-OIDC", payload=payload)
                command_fails(59, client.admin, "oidcListKeys")


def routed_tokens():
    with Issuer() as issuer:
        with Server(args=["--shards", "1", *issuer.flags(issuer.provider())]) as server:
            from members import wait_for

            with connect(server) as client:
                wait_for("the first user", lambda: client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"]))
            root = connect(server, "root", PASSWORD)
            root.admin.command("createRole", "idp/readers", privileges=[], roles=[{"role": "read", "db": "lib"}])
            root.lib.books.insert_one({"_id": 1})
            with by_callback(server, Tokens(issuer.token)) as client:
                assert client.lib.books.find_one() == {"_id": 1}
                fails(13, lambda: client.lib.books.insert_one({}))
                shown = [{"$limit": 1}, {"$project": {"roles": "$$USER_ROLES._id"}}]
                assert "admin.idp/readers" in next(client.lib.books.aggregate(shown))["roles"]


def an_issuer_by_https():
    """Its certificate is one that the system's authorities have signed, or its keys are not read."""
    with Certificates() as certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server)
        with Issuer(context, chunked=True) as issuer:
            for trusted in (certificates.ca, certificates.authority("others")):
                server = Server(args=issuer.flags(issuer.provider()))
                server.env = {"SSL_CERT_FILE": trusted}
                with server:
                    if trusted == certificates.ca:
                        assert one_step(server, issuer.token())["authenticatedUsers"] == [{"user": "idp/ann", "db": "$external"}]
                    else:
                        fails(18, lambda: one_step(server, issuer.token()), "Authentication failed.")


CHECKS = {"tokens": tokens, "tokens through a router": routed_tokens, "tokens by HTTPS": an_issuer_by_https}
