"""Clients' functions that spend their time within built-in ones, where the engine does not look whether it may go on."""

import threading
import time

import pymongo
from common import fails
from sheaf_process import Server

# Some minutes of work; the engine looks each 10,000 steps, so not before it is done.
SORTS = "function() { const a = Array.from({length: 50000}, (_, i) => i); for (let i = 0; i < 9000; i++) a.sort(); return 1 }"


def pipeline(body=SORTS):
    return [{"$documents": [{"a": 1}]}, {"$project": {"r": {"$function": {"body": body, "args": [], "lang": "js"}}}}]


def functions_are_left_behind():
    """`maxTimeMS`, `killOp` and the end of its client end an operation whose function does not heed them; the others go on, and so does the end of the server."""
    with Server() as server:
        # Without a limit of its own a socket waits for as long as the function runs.
        client = pymongo.MongoClient(server.uri, retryReads=False)
        admin = client.admin
        fails(50, lambda: admin.command("aggregate", 1, pipeline=pipeline(), cursor={}, maxTimeMS=100))
        still(server, client, "by its time", 0)

        killed = []
        thread = threading.Thread(target=lambda: killed.append(outcome(admin, "killed")), daemon=True)
        thread.start()
        [operation] = still(server, client, "killed", 1)
        admin.command("killOp", op=operation["opid"])
        thread.join(120)
        assert killed == [11601], killed

        gone = pymongo.MongoClient(server.uri, retryReads=False, socketTimeoutMS=1000)
        try:
            gone.admin.command("aggregate", 1, pipeline=pipeline(), cursor={}, comment="gone")
            raise AssertionError("it has an answer")
        except pymongo.errors.NetworkTimeout:
            gone.close()
        still(server, client, "gone", 0)

        one = admin.command("aggregate", 1, pipeline=pipeline("function() { return 7 }"), cursor={})
        assert one["cursor"]["firstBatch"] == [{"r": 7.0}], one
        assert server.stop() == 0


def functions_of_one_user_keep_no_other_out():
    """What one user leaves behind, be it for good, takes neither the other's places nor lets its own operations go on without end."""
    endless = pipeline("function() { for (;;) { [].reverse.call({length: 9e15}) } }")
    with Server(args=["--auth"]) as server:
        with pymongo.MongoClient(server.uri) as client:
            client.admin.command("createUser", "root", pwd="pencil-7731", roles=["root"])
        root = pymongo.MongoClient(server.uri, username="root", password="pencil-7731")
        root.admin.command("createUser", "none", pwd="pencil-7732", roles=[])
        none = pymongo.MongoClient(server.uri, username="none", password="pencil-7732", maxPoolSize=40)
        ended = []

        def one():
            try:
                none.admin.command("aggregate", 1, pipeline=endless, cursor={}, maxTimeMS=500)
            except pymongo.errors.OperationFailure as error:
                ended.append(error.code)

        threads = [threading.Thread(target=one, daemon=True) for _ in range(24)]
        [thread.start() for thread in threads]
        [thread.join(120) for thread in threads]
        assert len(ended) == 24 and set(ended) <= {50, 139} and 50 in ended, ended
        fails(139, lambda: none.admin.command("aggregate", 1, pipeline=endless, cursor={}))
        loop = pipeline("function() { let n = 0; for (let i = 0; i < 10; i++) n += i; return n }")
        assert root.admin.command("aggregate", 1, pipeline=loop, cursor={})["cursor"]["firstBatch"] == [{"r": 45.0}]
        # An operator calls what stands under this name: such code is not taken for brief.
        unseen = pipeline("function() { return +({length: 9e15, valueOf: [].reverse}) }")
        fails(50, lambda: root.admin.command("aggregate", 1, pipeline=unseen, cursor={}, maxTimeMS=500))
        assert server.stop() == 0


def outcome(admin, comment):
    try:
        return admin.command("aggregate", 1, pipeline=pipeline(), cursor={}, comment=comment)
    except pymongo.errors.OperationFailure as error:
        return error.code


def still(server, client, comment, number):
    """The operations with this comment, as soon as there are so many."""
    until = time.monotonic() + 120
    while True:
        found = list(client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.comment": comment}}]))
        if len(found) == number:
            return found
        assert time.monotonic() < until, f"{len(found)} operations {comment!r}, not {number}: {server.log_tail()}"
        time.sleep(0.05)


CHECKS = {"javascript": functions_are_left_behind, "javascript of others": functions_of_one_user_keep_no_other_out}
