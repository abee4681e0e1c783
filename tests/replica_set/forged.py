"""Who speaks the members' protocol and is no member: nothing that it says changes anything, or ends anything."""

import os
import socket
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import bson
import pymongo
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from members import ReplicaSet, eventually
from sheaf_process import Server, free_port

MAGIC = b"ShMb"
VERSION = 2
APPEND, APPEND_RESPONSE, REQUEST_VOTE, HEARTBEAT, TIMEOUT_NOW = 0, 1, 2, 5, 7


def framed(data):
    return struct.pack("<I", len(data)) + data


def greeting(name, host, nonce=None):
    link = {"link": bson.Int64(VERSION), "set": name, "host": host, "nonce": bson.Binary(nonce or os.urandom(16))}
    return MAGIC + framed(bson.encode(link))


def envelope(sender, to, term, version, kind, body, incarnation=2**50):
    head = struct.pack("<BQQqqQ", VERSION, sender, to, term, version, incarnation)
    return framed(head + bytes([kind]) + body)


def configuration(sender, to, config):
    data = bson.encode(config)
    return envelope(sender, to, config["term"], config["version"], 4, struct.pack("<I", len(data)) + data)


def consensus(kind, sender, to, term, log_term, index, entries=(), config=(1, 1)):
    body = bytes([kind, 0])
    body += struct.pack("<9Q", to + 1, sender + 1, term, log_term, index, index, 0, 0, 0)
    body += struct.pack("<IQQQ", 0, 0, 0, len(entries))
    for entry_term, entry_index, time_, data in entries:
        body += struct.pack("<QQI", entry_term, entry_index, 8) + struct.pack("<QI", time_, len(data)) + data
    return envelope(sender, to, *config, 0, body)


def say(port, data):
    """Sends it, and keeps the connection until it is closed or nothing more is to be expected."""
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.settimeout(0.5)
        try:
            link.sendall(data)
            link.recv(1)
        except OSError:
            pass


def say_all(port, words):
    """Several at a time: most keep their connection for as long as `say` waits."""
    with ThreadPoolExecutor(16) as speakers:
        list(speakers.map(lambda data: say(port, data), words))


def far(config):
    """Another configuration, far ahead, of members that do not exist."""
    whole = {"arbiterOnly": False, "buildIndexes": True, "hidden": False, "priority": 1.0, "tags": {}, "votes": 1}
    hosts = [config["members"][0]["host"], "127.0.0.1:1", "127.0.0.1:2"]
    members = [{"_id": at, "host": host, "secondaryDelaySecs": bson.Int64(0), **whole} for at, host in enumerate(hosts)]
    return {
        "_id": config["_id"], "version": 2_000_000, "term": 2_000_000, "members": members,
        "protocolVersion": bson.Int64(1), "writeConcernMajorityJournalDefault": True, "settings": {},
    }


def lies(members, at):
    """What is said to a member, each in the name of everyone."""
    own = members.config["members"]
    with members.direct(at) as client:
        status = client.admin.command("replSetGetStatus")
        config = client.admin.command("replSetGetConfig")["config"]
    last, term = status["optimes"]["appliedOpTime"], int(status["term"])
    garbage = bson.encode({"op": "zz", "ns": "t.c", "ts": bson.Timestamp(2**31, 1)})
    for sender in (*range(len(own)), 7):
        host = own[sender]["host"] if sender < len(own) else "127.0.0.1:1"
        yield sender, host, configuration(sender, at, far(config))
        yield sender, host, configuration(sender, at, {**far(config), "term": term + 1, "version": config["version"] + 1})
        for index in range(1, 40):
            new = [(term + 1, index + 1, 2**63 | 1, garbage)]
            yield sender, host, consensus(APPEND, sender, at, term + 1, int(last["t"]), index, new)
        yield sender, host, consensus(APPEND, sender, at, term + 1, 0, 0, [])
        yield sender, host, consensus(HEARTBEAT, sender, at, term + 5, 0, 10)
        yield sender, host, consensus(REQUEST_VOTE, sender, at, term + 500_000, term + 500_000, 2**40)
        yield sender, host, consensus(TIMEOUT_NOW, sender, at, term, 0, 0)
        yield sender, host, consensus(APPEND_RESPONSE, sender, at, term, term, 2**60)


def nothing_that_a_stranger_says_is_believed():
    with ReplicaSet() as members, members.client() as client:
        c = client.t.get_collection("c", write_concern=WriteConcern(w=3))
        c.insert_many([{"_id": n} for n in range(100)])
        before = client.admin.command("replSetGetConfig")["config"]
        term = client.admin.command("replSetGetStatus")["term"]
        primary = members.primary()
        for at in range(3):
            port = members.servers[at].port
            told = [(host, lie) for _, host, lie in lies(members, at)]
            # Of appends at every index, some are enough.
            some = [pair for number, pair in enumerate(told) if number % 7 in (0, 1) or number % 45 > 39]
            words = [greeting("rs", host) + lie for host, lie in some]
            words.append(greeting("other", some[-1][0]) + some[-1][1])
            # Members of the first version, no greeting, half of one, none that can be read.
            first = some[-1][0].encode()
            words += [MAGIC + part for part in (framed(first), b"", b"\xff\xff\xff\xff", framed(b"\xff" * 100), framed(b""))]
            say_all(port, words)
            assert members.servers[at].process.poll() is None, members.logs()
        c.insert_one({"_id": "after"})
        after = client.admin.command("replSetGetConfig")["config"]
        assert after == before, after
        assert members.primary() == primary
        assert client.admin.command("replSetGetStatus")["term"] == term
        log = members.servers[primary].log_path.read_text()
        assert "A link of a member is refused" in log and "has not opened this link" in log, log[-2000:]
        # What they have logged can be read again.
        for server in members.servers:
            server.kill()
        for server in members.servers:
            server.start()
        members.primary()
        eventually(lambda: c.count_documents({}) == 101, "all documents")


def received(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        assert more, "closed"
        data += more
    return data


# Of a set "rs", from one that has nothing.
PING = struct.pack("<I", 2) + b"rs" + struct.pack("<10Q", *[0] * 10) + bytes([2, 0]) + struct.pack("<3Q", 0, 0, 0)


def number_shown_to_a_stranger(port, to, listener):
    """A member tells one that is not in its configuration so, over a link of its own, and shows him that link's number."""
    own = f"127.0.0.1:{listener.getsockname()[1]}"
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        stranger.sendall(greeting("rs", own) + envelope(77, to, -1, 0, 2, PING, incarnation=5))
        while True:
            stream, _ = listener.accept()
            stream.settimeout(10)
            assert received(stream, 4) == MAGIC
            said = bson.decode(received(stream, struct.unpack("<I", received(stream, 4))[0]))
            if "confirm" not in said:
                return bytes(said["nonce"])
            stream.sendall(framed(bson.encode({"ok": True, "set": "rs"})))


def a_number_shown_to_one_proves_nothing_to_another():
    with ReplicaSet() as members, members.client() as client, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        c = client.t.get_collection("c", write_concern=WriteConcern(w=3))
        c.insert_one({"_id": 1})
        before = client.admin.command("replSetGetConfig")["config"]
        primary = members.primary()
        number = number_shown_to_a_stranger(members.servers[primary].port, primary, listener)
        host = before["members"][primary]["host"]
        new = {**far(before), "term": before["term"] + 1, "version": before["version"] + 5}
        for at in members.secondaries():
            say(members.servers[at].port, greeting("rs", host, number) + configuration(primary, at, new))
            log = members.servers[at].log_path.read_text()
            assert "has not opened this link" in log, log[-2000:]
        c.insert_one({"_id": 2})
        assert client.admin.command("replSetGetConfig")["config"] == before


def is_open(stream):
    stream.setblocking(False)
    try:
        while stream.recv(1 << 16):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def strangers_are_told_a_few_at_a_time():
    """Each is dialled, so there must not be as many connections as there are names."""
    with ReplicaSet() as members, members.client() as client, socket.create_server(("", 0), backlog=500) as listener:
        primary = members.primary()
        port, strangers, links = listener.getsockname()[1], [], []
        listener.settimeout(0.1)
        for n in range(40):
            stranger = socket.create_connection(("127.0.0.1", members.servers[primary].port), 10)
            strangers.append(stranger)
            host = f"127.0.1.{n + 1}:{port}"
            stranger.sendall(greeting("rs", host) + envelope(77, primary, -1, 0, 2, PING, incarnation=5))
            while True:
                try:
                    stream, _ = listener.accept()
                except TimeoutError:
                    break
                stream.settimeout(10)
                assert received(stream, 4) == MAGIC
                said = bson.decode(received(stream, struct.unpack("<I", received(stream, 4))[0]))
                if "confirm" in said:
                    stream.sendall(framed(bson.encode({"ok": True, "set": "rs"})))
                    stream.close()
                else:
                    links.append(stream)
        assert links and sum(map(is_open, links)) <= 8, f"{sum(map(is_open, links))} of {len(links)}"
        eventually(lambda: not any(map(is_open, links)), "links to strangers end")
        client.t.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({"_id": 1})
        for stream in (*strangers, *links):
            stream.close()


def a_new_member_believes_only_who_can_be_asked():
    """Without a configuration, a member takes one from whoever stands in it, can be dialled there, and says that it was it."""
    new = Server(args=["--replSet", "rs"], port=free_port())
    new.start()
    try:
        host = f"127.0.0.1:{new.port}"
        for theirs, name in (("127.0.0.1:1", "rs"), (host, "rs"), (f"127.0.0.1:{free_port()}", "other")):
            config = far({"_id": name, "members": [{"host": theirs}]})
            config["members"].append({**config["members"][0], "_id": 3, "host": host})
            say(new.port, greeting(name, theirs) + configuration(0, 3, config))
        log = new.log_path.read_text()
        assert "A link of a member is refused" in log, log[-2000:]
        with pymongo.MongoClient(new.uri) as client:
            hello = client.admin.command("hello")
            assert hello["info"] == "Does not have a valid replica set config", hello
            # It is as good as new: a set of its own begins.
            client.admin.command("replSetInitiate", {"_id": "rs", "members": [{"_id": 0, "host": host}]})
            eventually(lambda: client.admin.command("hello")["isWritablePrimary"], "a primary")
    finally:
        new.cleanup()


def copies_are_made_for_members_only():
    """A copy costs its source a flush and keeps its log: who asks for one is asked back."""
    with ReplicaSet() as members, members.client() as client:
        client.t.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({"_id": 1})
        server = members.servers[members.primary()]
        for sender in (*range(3), 7):
            who = {"set": "rs", "from": bson.Int64(sender), "nonce": bson.Binary(os.urandom(16))}
            for request in (who, {**who, "set": "other"}, {"set": "rs"}):
                with socket.create_connection(("127.0.0.1", server.port), 10) as link:
                    link.sendall(b"ShCp" + bson.encode({**request, "atLeast": bson.Int64(0)}))
                    answer = link.makefile("rb").read()
                    assert bson.decode(answer)["ok"] is False, bson.decode(answer)
        copies = server.dbpath / "sync-source"
        assert not copies.exists() or not list(copies.iterdir()), list(copies.iterdir())


def members_that_move_and_come_back_are_believed():
    """A member on another port, and one that was removed and is taken in again."""
    with ReplicaSet() as members, members.client() as client:
        at = members.secondaries()[0]
        server = members.servers[at]
        server.stop()
        server.port = free_port()
        server.start()

        def reconfigure(change):
            deadline = time.monotonic() + 60
            while True:
                config = client.admin.command("replSetGetConfig")["config"]
                config["version"] += 1
                change(config)
                try:
                    return client.admin.command("replSetReconfig", config)
                except Exception as error:
                    # The configuration before it is not known to a majority yet.
                    if time.monotonic() > deadline or getattr(error, "code", 0) not in (308, 109, 74):
                        raise
                time.sleep(0.05)

        def move(config):
            config["members"][at]["host"] = members.host(at)

        reconfigure(move)
        members.config["members"][at]["host"] = members.host(at)
        all_there = lambda states: sorted(str(s) for s in states) == ["PRIMARY", "SECONDARY", "SECONDARY"]
        members.wait_for(all_there)
        client.t.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({"_id": 1})
        # Removed while it is down: it is told so when it comes back.
        server.stop()
        reconfigure(lambda config: config["members"].pop(at))
        server.start()

        def removed():
            with members.direct(at) as direct:
                try:
                    direct.admin.command("replSetGetStatus")
                    return False
                except OperationFailure as error:
                    # InvalidReplicaSetConfig: "... or we are not a member of it"
                    return error.code == 93

        eventually(removed, "word that it was removed")
        reconfigure(lambda config: config["members"].append({"_id": 9, "host": members.host(at)}))
        members.wait_for(all_there)
        client.t.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({"_id": 2})


def a_copy_of_the_only_member_is_no_primary_beside_it():
    """It finds that the member whose folder it has a copy of is there, and is a set of its own once it has an address of its own."""
    with ReplicaSet(configs=({},)) as members:
        [member] = members.servers
        copy = Server(args=members.args, port=free_port())
        moved = Server(args=members.args, dbpath=member.dbpath, port=free_port(), log=member.log_path)
        try:
            # By the set's name: a new primary may take no writes for a moment.
            with members.client() as first:
                first.t.c.insert_one({"_id": 1})
                first.admin.command("fsync", lock=True)
                subprocess.run(["cp", "-a", f"{member.dbpath}/.", copy.dbpath], check=True)
                first.admin.command("fsyncUnlock")
                copy.start()
                with pymongo.MongoClient(copy.uri) as second:
                    hello = second.admin.command("hello")
                    assert not hello["isWritablePrimary"] and not hello["secondary"], hello
                    assert "99000055" in copy.log_path.read_text(), copy.log_tail()
                    assert members.states() == ["PRIMARY"]
                    config = {**members.config, "version": 100, "members": [{"_id": 0, "host": f"127.0.0.1:{copy.port}"}]}
                    second.admin.command("replSetReconfig", config, force=True)
                    eventually(lambda: second.admin.command("hello")["isWritablePrimary"], "a primary of its own set")
                    second.t.c.insert_one({"_id": 2})
                assert first.t.c.count_documents({}) == 1
            # Where nobody answers at the member's address it is the member, whatever address it has now.
            assert copy.stop() == member.stop() == 0
            moved.start()
            with pymongo.MongoClient(moved.uri) as third:
                eventually(lambda: third.admin.command("hello")["isWritablePrimary"], "the member at another port")
        finally:
            moved.cleanup()
            copy.cleanup()


CHECKS = [
    nothing_that_a_stranger_says_is_believed, a_number_shown_to_one_proves_nothing_to_another,
    strangers_are_told_a_few_at_a_time, a_new_member_believes_only_who_can_be_asked, members_that_move_and_come_back_are_believed,
    copies_are_made_for_members_only, a_copy_of_the_only_member_is_no_primary_beside_it,
]
