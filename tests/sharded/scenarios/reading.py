"""The pages on read preference and cursors: partial results, staleness, hidden members."""

from pymongo import ReadPreference
from pymongo.read_preferences import SecondaryPreferred

from checks import alone, check, refused
from cluster import eventually
from scenarios import spread_evenly


@check
def staleness_is_ninety_seconds_at_least(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "stalereads.plants")
        preference = {"mode": "secondaryPreferred", "maxStalenessSeconds": 30}
        refused(160, lambda: client.stalereads.command({"find": "plants", "$readPreference": preference}))
        stale = SecondaryPreferred(max_staleness=90)
        assert len(list(plants.with_options(read_preference=stale).find({}))) == 100
        assert len(list(plants.with_options(read_preference=ReadPreference.NEAREST).find({}))) == 100


@alone(routers=1)
def partial_results_leave_a_dead_shard_out(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "partial.plants")
        command = {"find": "plants", "sort": {"k": 1}, "allowPartialResults": True, "batchSize": 10, "maxTimeMS": 3000}
        whole = client.partial.command(command)["cursor"]
        assert "partialResultsReturned" not in whole and whole["id"], whole
        for server in cluster.shards[1].servers:
            server.kill()
        refused_codes = []

        def is_lost():
            try:
                client.partial.command({"find": "plants", "maxTimeMS": 300})
            except Exception as error:
                refused_codes.append(getattr(error, "code", None))
                return True

        eventually(is_lost, "the shard is lost")
        part = client.partial.command(command)["cursor"]
        assert part["partialResultsReturned"] is True, part
        found = list(plants.find({}, allow_partial_results=True, max_time_ms=2000))
        assert sorted(plant["k"] for plant in found) == list(range(50)), len(found)
        lost = client.partial.command({"find": "plants", "filter": {"k": 70}, "allowPartialResults": True, "maxTimeMS": 1000})
        assert lost["cursor"]["firstBatch"] == [] and lost["cursor"]["partialResultsReturned"], lost
