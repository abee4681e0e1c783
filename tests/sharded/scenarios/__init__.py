"""What MongoDB's manual says of sharded clusters, page by page. Each file is a topic; all run on one cluster of two shards."""


def spread_evenly(client, namespace, documents=100):
    """A collection on `k`, half of it on each shard."""
    db, name = namespace.split(".")
    client.admin.command("enableSharding", db, primaryShard="shard0")
    client.admin.command("shardCollection", namespace, key={"k": 1})
    middle = documents // 2
    client.admin.command("split", namespace, middle={"k": middle})
    client.admin.command("moveChunk", namespace, find={"k": middle}, to="shard1")
    client[db][name].insert_many([{"_id": at, "k": at, "name": f"plant {at}"} for at in range(documents)])
    return client[db][name]
