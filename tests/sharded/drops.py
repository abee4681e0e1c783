"""Databases that are dropped while others write to them."""

import threading

from pymongo.errors import PyMongoError

from checks import check


@check
def drops_beside_inserts(cluster):
    """What a router that has not heard of the drop yet writes does not stay where nobody looks."""
    name = "dropped"
    with cluster.client(router=0) as first, cluster.client(router=1) as second:
        for turn in range(24):
            first.admin.command("enableSharding", name, primaryShard=f"shard{turn % 2}")
            second[name].t.insert_one({"_id": "x"})
            go = threading.Barrier(3)

            def write(client, who):
                go.wait()
                for at in range(15):
                    try:
                        client[name].t.insert_one({"_id": f"{turn}.{who}.{at}"})
                    except PyMongoError:
                        pass  # The database went away under it.

            writers = [threading.Thread(target=write, args=args) for args in ((first, 0), (second, 1))]
            for writer in writers:
                writer.start()
            go.wait()
            first.drop_database(name)
            for writer in writers:
                writer.join()
            seen = {document["_id"] for document in first[name].t.find()}
            for shard in cluster.shards:
                with shard.direct(0) as direct:
                    there = {document["_id"] for document in direct[name].t.find()}
                    assert there <= seen, (turn, shard.name, sorted(there - seen)[:5], len(seen))
            first.drop_database(name)
