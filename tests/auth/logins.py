"""Logging in, whether or not clients must: users can be there on a server that asks nobody who he is."""

from common import command_fails, connect, fails
from pymongo.server_api import ServerApi

SECRETS = ["pencil-7731", "quill-7732", "chalk-7733"]


def both_mechanisms(server):
    with connect(server) as client:
        client.admin.command("createUser", "ann", pwd=SECRETS[0], roles=["root"], customData={"n": 1})
        client.admin.command("createUser", "old", pwd=SECRETS[1], roles=[], mechanisms=["SCRAM-SHA-1"])
        client.admin.command("createUser", "new", pwd=SECRETS[1], roles=[], mechanisms=["SCRAM-SHA-256"])
        client.other.command("createUser", "ann", pwd=SECRETS[2], roles=["read"])
        found = client.admin.command("hello", saslSupportedMechs="admin.ann")
        assert found["saslSupportedMechs"] == ["SCRAM-SHA-256", "SCRAM-SHA-1"], found
        for user, expected in [("old", ["SCRAM-SHA-1"]), ("new", ["SCRAM-SHA-256"])]:
            found = client.admin.command("hello", saslSupportedMechs=f"admin.{user}")
            assert found["saslSupportedMechs"] == expected, found
        # Nobody learns from it who there is.
        found = client.admin.command("hello", saslSupportedMechs="admin.nobody")
        assert found["saslSupportedMechs"] in (["SCRAM-SHA-256", "SCRAM-SHA-1"], ["SCRAM-SHA-1"], ["SCRAM-SHA-256"]), found
    for mechanism in (None, "SCRAM-SHA-1", "SCRAM-SHA-256"):
        options = {} if mechanism is None else {"authMechanism": mechanism}
        with connect(server, "ann", SECRETS[0], **options) as client:
            told = client.admin.command("connectionStatus")["authInfo"]
            assert told["authenticatedUsers"] == [{"user": "ann", "db": "admin"}], told
            # Of what a built-in role is made is told nowhere.
            assert told["authenticatedUserRoles"] == [{"role": "root", "db": "admin"}], told
    log = server.log_path.read_text()
    assert '"isSpeculative":true,"isClusterMember":false,"mechanism":"SCRAM-SHA-256","user":"ann"' in log, log[-2000:]
    with connect(server, "ann", SECRETS[2], authSource="other") as client:
        told = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        assert told["authenticatedUsers"] == [{"user": "ann", "db": "other"}], told
        assert told["authenticatedUserRoles"] == [{"role": "read", "db": "other"}], told
        granted = {privilege["resource"]["collection"]: privilege["actions"] for privilege in
                   told["authenticatedUserPrivileges"]}
        assert set(granted) == {"", "system.js"} and "find" in granted[""], told


def with_a_strict_api(server):
    """The commands by which clients log in are in version 1 of the API."""
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
        with connect(server, "ann", SECRETS[0], authMechanism=mechanism, server_api=ServerApi("1", strict=True)) as client:
            assert client.lib.books.find_one() is None
            command_fails(323, client.admin, "logout")


def wrong_and_unknown_are_alike(server):
    cases = [("ann", "wrong"), ("nobody", "wrong"), ("old", "wrong"), ("nobody", SECRETS[0])]
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
        for user, password in [*cases, ("new" if mechanism == "SCRAM-SHA-1" else "old", SECRETS[1])]:
            with connect(server, user, password, authMechanism=mechanism) as client:
                fails(18, lambda: client.admin.command("ping"), "Authentication failed.")
    # Only the log says why.
    log = server.log_path.read_text()
    for why in ('UserNotFound: Could not find user \\"nobody\\" for db \\"admin\\"', "storedKey mismatch", "without any SCRAM-SHA-256 credentials registered"):
        assert why in log, why
    with connect(server) as client:
        command_fails(334, client.admin, "saslStart", mechanism="PLAIN", payload=b"", words="PLAIN")
        command_fails(17, client.admin, "saslContinue", conversationId=1, payload=b"", words="No SASL session")
        command_fails(18, client.admin, "saslStart", mechanism="SCRAM-SHA-1", payload=b"n,,n=ann")
        first = {"mechanism": "SCRAM-SHA-256", "payload": b"n,,n=nobody,r=abcdef"}
        answers = [client.admin.command("saslStart", **first)["payload"].split(b",") for _ in range(2)]
        assert answers[0][1:] == answers[1][1:], "a user that there is not has the same salt each time"
        assert answers[0][0] != answers[1][0] and answers[0][2] == b"i=15000", answers


def passwords_and_names(server):
    with connect(server) as client:
        # SASLprep makes the same of both.
        client.admin.command("createUser", "ßà=,@:/%", pwd="I\u00adX", roles=[])
        connect(server, "ßà=,@:/%", "\u2168", authMechanism="SCRAM-SHA-256").admin.command("ping")
        command_fails(2, client.admin, "createUser", "x", pwd="a\u0007", roles=[])
        client.admin.command("setParameter", 1, scramSHA256IterationCount=6000, scramIterationCount=5000)
        client.admin.command("createUser", "few", pwd=SECRETS[0], roles=[])
        kept = client.admin["system.users"].find_one({"_id": "admin.few"})["credentials"]
        assert [kept[name]["iterationCount"] for name in ("SCRAM-SHA-1", "SCRAM-SHA-256")] == [5000, 6000], kept
        command_fails(2, client.admin, "setParameter", 1, scramIterationCount=4999)
        client.admin.command("setParameter", 1, scramSHA256IterationCount=15000, scramIterationCount=10000)
        told = client.admin.command("getParameter", 1, authenticationMechanisms=1)["authenticationMechanisms"]
        assert told == ["MONGODB-X509", "SCRAM-SHA-1", "SCRAM-SHA-256"], told
    connect(server, "few", SECRETS[0]).admin.command("ping")


def where_users_may_come_from(server):
    with connect(server) as client:
        for name, source in [("near", "127.0.0.0/8"), ("far", "10.0.0.0/8")]:
            restrictions = [{"clientSource": [source], "serverAddress": ["127.0.0.1"]}]
            client.admin.command("createUser", name, pwd=SECRETS[0], roles=[], authenticationRestrictions=restrictions)
        role = [{"serverAddress": ["10.0.0.1"]}]
        client.admin.command("createRole", "distant", privileges=[], roles=[], authenticationRestrictions=role)
        client.admin.command("createUser", "byrole", pwd=SECRETS[0], roles=["distant"])
    connect(server, "near", SECRETS[0]).admin.command("ping")
    for name in ("far", "byrole"):
        fails(18, lambda: connect(server, name, SECRETS[0]).admin.command("ping"), "Authentication failed.")


def changes_on_an_open_connection(server):
    with connect(server) as client, connect(server, "ann", SECRETS[2], authSource="other", maxPoolSize=1) as user:
        def roles():
            told = user.admin.command("connectionStatus")["authInfo"]
            return [role["role"] for role in told["authenticatedUserRoles"]], told["authenticatedUsers"]

        assert roles()[0] == ["read"]
        client.other.command("grantRolesToUser", "ann", roles=["dbAdmin"])
        assert roles()[0] == ["dbAdmin", "read"]
        # Also what is written to the collection itself.
        client.admin["system.users"].update_one({"_id": "other.ann"}, {"$set": {"roles": []}})
        assert roles()[0] == []
        client.other.command("dropUser", "ann")
        assert roles() == ([], [])
        # One of the same name is another.
        client.other.command("createUser", "ann", pwd=SECRETS[2], roles=["read"])
        assert roles() == ([], [])
    with connect(server, "ann", SECRETS[0], maxPoolSize=1) as user:
        user.admin.command("logout")
        assert user.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"] == []


def no_secret_is_shown(server):
    with connect(server) as client:
        client.admin.command("profile", 2)
        client.admin.command("setParameter", 1, logLevel=5)
        client.admin.command("createUser", "logged", pwd=SECRETS[0], roles=[])
        client.admin.command("updateUser", "logged", pwd=SECRETS[1])
        command_fails(2, client.admin, "createUser", "x", pwd=SECRETS[1], roles=[1])
        connect(server, "logged", SECRETS[1]).admin.command("ping")
        fails(18, lambda: connect(server, "logged", SECRETS[2]).admin.command("ping"))
        shown = [entry["command"] for entry in client.admin["system.profile"].find({"command.createUser": "logged"})]
        assert shown and shown[0]["pwd"] == "xxx", shown
        texts = [str(entry) for entry in client.admin["system.profile"].find()]
        client.admin.command("setParameter", 1, logLevel=0)
        client.admin.command("profile", 0)
        texts.append(str(client.admin.command("getLog", "global")))
        texts.append(str(client.admin.command("currentOp", 1)))
    texts.append(server.log_path.read_text(errors="replace"))
    for text in texts:
        for secret in SECRETS:
            assert secret not in text, f"a password is shown: {text[max(0, text.index(secret) - 300):][:400]}"
        # Messages of SCRAM, as text and in base64.
        for message in ("n,,n=", "biwsbj", "c=biws", "Yz1iaXdz"):
            assert message not in text, f"a payload is shown: {text[max(0, text.index(message) - 300):][:400]}"


def survives_a_restart(server):
    server.kill()
    server.start()
    assert connect(server, "ann", SECRETS[0]).admin.command("ping")["ok"] == 1


CHECKS = [
    both_mechanisms,
    with_a_strict_api,
    wrong_and_unknown_are_alike,
    passwords_and_names,
    where_users_may_come_from,
    changes_on_an_open_connection,
    no_secret_is_shown,
    survives_a_restart,
]
