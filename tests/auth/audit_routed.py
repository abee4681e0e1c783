"""The audit logs of routers: what is done through them, for whom, and what `setAuditConfig` makes of them."""

import concurrent.futures
import os
import pathlib
import signal
import sys
import tempfile

from audit import events, shape
from common import command_fails
from members import wait_for

HERE = pathlib.Path(__file__).resolve().parent


def cluster_of(shards, routers):
    """A class of another folder, which has files of the same names as this one."""
    own = sys.modules.pop("members")
    paths = sys.path[:]
    try:
        sys.path[:0] = [str(HERE.parent / "sharded"), str(HERE.parent / "replica_set")]
        from cluster import Cluster

        return Cluster(shards=shards, routers=routers)
    finally:
        sys.path[:] = paths
        sys.modules["members"] = own


def audited(folder, server, name, runtime):
    """Gives the server an audit log before it starts, and tells where."""
    path, config = folder / f"{name}.json", folder / f"{name}.yaml"
    how = ", runtimeConfiguration: true" if runtime else ""
    config.write_text(f"auditLog: {{destination: file, format: JSON, path: {path}{how}}}\n")
    server.args += ["--config", str(config)]
    return path


def what_is_done_through_a_router(client, path):
    client.admin.command("enableSharding", "lib")
    client.admin.command("shardCollection", "lib.books", key={"_id": 1}, unique=True)
    client.admin.command("shardCollection", "lib.notes", key={"_id": 1})
    client.admin.command("renameCollection", "lib.notes", to="lib.papers")
    client.lib.drop_collection("papers")
    client.drop_database("lib")
    found = [shape(event) for event in events(path)]
    for wanted in [
        ("enableSharding", {"ns": "lib"}, 0),
        ("shardCollection", {"ns": "lib.books", "key": {"_id": 1}, "options": {"unique": True}}, 0),
        ("renameCollection", {"old": "lib.notes", "new": "lib.papers"}, 0),
        ("dropCollection", {"ns": "lib.papers"}, 0),
        ("dropDatabase", {"ns": "lib"}, 0),
    ]:
        assert wanted in found, f"{wanted} is not in {found}"
    assert "startup" in [event["atype"] for event in events(path)]
    # Routers warn as servers do.
    assert '"id":22120' in str(client.admin.command("getLog", "startupWarnings")["log"])


def what_shards_do(client, path):
    """Their own logs tell what a cluster's work has made of their collections."""
    client.admin.command("shardCollection", "shelf.books", key={"n": 1})
    client.shelf.books.create_index("title")
    client.admin.command("renameCollection", "shelf.books", to="shelf.papers")
    client.shelf.drop_collection("papers")
    client.admin.command("shardCollection", "shelf.rest", key={"_id": 1})
    client.drop_database("shelf")
    found = [shape(event) for event in events(path) if "shelf" in str(event["param"])]
    named = [(atype, param.get("ns", param.get("old")), param.get("indexName")) for atype, param, _ in found]
    for wanted in [
        ("createCollection", "shelf.books", None), ("createIndex", "shelf.books", "n_1"),
        ("createIndex", "shelf.books", "title_1"), ("renameCollection", "shelf.books", None), ("dropCollection", "shelf.papers", None),
        ("createCollection", "shelf.rest", None), ("dropCollection", "shelf.rest", None), ("dropDatabase", "shelf", None),
    ]:
        assert named.count(wanted) == 1, f"{wanted} stands {named.count(wanted)} times in {named}"
    assert ("createDatabase", "shelf", None) in named, named


def a_filter_for_all(first, paths):
    """It holds at once where it was set, and soon on the others."""
    before = first.admin.command("getAuditConfig")
    wanted = {"atype": {"$in": ["auditConfigure", "applicationMessage"]}}
    first.admin.command("setAuditConfig", filter=wanted, auditAuthorizationSuccess=False)
    (event,) = events(paths[0], "auditConfigure")
    assert event["param"]["previous"]["filter"] == before["filter"] == {}, event
    assert event["param"]["config"]["filter"] == wanted, event
    seen = len(events(paths[0]))
    first.admin.command("enableSharding", "lib")
    first.admin.command("logApplicationMessage", "hello")
    assert [event["atype"] for event in events(paths[0])[seen:]] == ["applicationMessage"]
    assert [event["param"]["config"]["filter"] for event in events(paths["config"], "auditConfigure")] == [wanted]
    # By the parameter of the cluster it is the same.
    again = {"filter": {"atype": "auditConfigure"}, "auditAuthorizationSuccess": False}
    for value in (again, {"filter": wanted, "auditAuthorizationSuccess": False}):
        first.admin.command("setClusterParameter", {"auditConfig": value})
        (shown,) = first.admin.command("getClusterParameter", "auditConfig")["clusterParameters"]
        assert shown["filter"] == value["filter"], shown
        for path in (paths[0], paths["config"]):
            assert events(path, "auditConfigure")[-1]["param"]["config"]["filter"] == value["filter"], path


def what_a_router_replaces_right_after_its_start(cluster, path):
    """It has not heard yet of what was set before: the config servers do not answer until it has been asked."""
    before = {"atype": {"$in": ["auditConfigure", "applicationMessage"]}}
    router, config = cluster.routers[0], cluster.config.servers[0].process
    router.stop()
    os.kill(config.pid, signal.SIGSTOP)
    try:
        router.start()
        with cluster.client(0) as client, cluster.client(0) as other, concurrent.futures.ThreadPoolExecutor(1) as thread:
            wanted = {"filter": {"atype": "auditConfigure"}, "auditAuthorizationSuccess": False}
            asked = thread.submit(client.admin.command, "setAuditConfig", **wanted)

            def is_asked():
                commands = other.admin.command("serverStatus")["metrics"]["commands"]
                return commands.get("setAuditConfig", {}).get("total", 0) > 0

            try:
                wait_for("the command", is_asked)
            finally:
                os.kill(config.pid, signal.SIGCONT)
            asked.result()
    finally:
        os.kill(config.pid, signal.SIGCONT)
    event = events(path, "auditConfigure")[-1]
    assert event["param"]["previous"]["filter"] == before, event
    assert event["param"]["config"]["filter"] == {"atype": "auditConfigure"}, event


def routers():
    with tempfile.TemporaryDirectory(prefix="sheaf-audit-") as folder:
        folder, cluster = pathlib.Path(folder), cluster_of(shards=1, routers=3)
        paths = {at: audited(folder, router, f"router{at}", at < 2) for at, router in enumerate(cluster.routers)}
        paths["shard"] = audited(folder, cluster.shards[0].servers[0], "shard", False)
        paths["config"] = audited(folder, cluster.config.servers[0], "config", True)
        with cluster, cluster.client(0) as first, cluster.client(1) as second, cluster.client(2) as third:
            what_is_done_through_a_router(first, paths[0])
            what_shards_do(first, paths["shard"])
            command_fails(345, third.admin, "setAuditConfig", filter={}, auditAuthorizationSuccess=False)
            a_filter_for_all(first, paths)

            def obeys():
                seen = len(events(paths[1]))
                second.admin.command("enableSharding", "lib")
                return len(events(paths[1])) == seen

            wait_for("the other router", obeys)
            # One that has its own configuration goes by that.
            seen = len(events(paths[2], "enableSharding"))
            third.admin.command("enableSharding", "lib")
            assert len(events(paths[2], "enableSharding")) == seen + 1
            what_a_router_replaces_right_after_its_start(cluster, paths[0])


CHECKS = {"audit of routers": routers}
