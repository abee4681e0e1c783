"""MongoDB's stages, operators, accumulators and commands: each is there, or docs/compatibility.md says that it is not."""

import pathlib
import re

from pymongo.errors import OperationFailure

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

# The manual's of 8.2. Left out are commands of mongos alone, of the enterprise edition, for tests, and what only members say to
# each other.
STAGES = """
    addFields bucket bucketAuto changeStream changeStreamSplitLargeEvent collStats count currentOp densify documents facet fill
    geoNear graphLookup group indexStats limit listClusterCatalog listLocalSessions listSampledQueries listSearchIndexes
    listSessions lookup match merge out planCacheStats project querySettings queryStats rankFusion redact replaceRoot replaceWith
    sample score scoreFusion search searchMeta set setWindowFields shardedDataDistribution skip sort sortByCount unionWith unset
    unwind vectorSearch
"""
EXPRESSIONS = """
    abs acos acosh add allElementsTrue and anyElementTrue arrayElemAt arrayToObject asin asinh atan atan2 atanh avg binarySize
    bitAnd bitNot bitOr bitXor bsonSize ceil cmp concat concatArrays cond convert cos cosh dateAdd dateDiff dateFromParts
    dateFromString dateSubtract dateToParts dateToString dateTrunc dayOfMonth dayOfWeek dayOfYear degreesToRadians divide
    encStrContains encStrEndsWith encStrNormalizedEq encStrStartsWith eq exp filter first firstN floor function getField gt gte
    hour ifNull in indexOfArray indexOfBytes indexOfCP isArray isNumber isoDayOfWeek isoWeek isoWeekYear last lastN let literal
    ln log log10 lt lte ltrim map max maxN median mergeObjects meta millisecond min minN minute mod month multiply ne not
    objectToArray or percentile pow radiansToDegrees rand range reduce regexFind regexFindAll regexMatch replaceAll replaceOne
    reverseArray round rtrim second setDifference setEquals setField setIntersection setIsSubset setUnion sigmoid sin sinh size
    slice sortArray split sqrt stdDevPop stdDevSamp strLenBytes strLenCP strcasecmp substr substrBytes substrCP subtract sum
    switch tan tanh toBool toDate toDecimal toDouble toHashedIndexKey toInt toLong toLower toObjectId toString toUUID toUpper
    trim trunc tsIncrement tsSecond type unsetField week year zip
"""
ACCUMULATORS = """
    accumulator addToSet avg bottom bottomN concatArrays count first firstN last lastN max maxN median mergeObjects min minN
    percentile push setUnion stdDevPop stdDevSamp sum top topN
"""
CONDITIONS = """
    all bitsAllClear bitsAllSet bitsAnyClear bitsAnySet elemMatch eq exists geoIntersects geoWithin gt gte in lt lte mod ne near
    nearSphere nin not regex size type
"""
WHOLE_CONDITIONS = "alwaysFalse alwaysTrue and comment expr jsonSchema nor or sampleRate text where"
UPDATES = "addToSet bit currentDate inc max min mul pop pull pullAll push rename set setOnInsert unset"
COMMANDS = """
    abortTransaction aggregate analyze analyzeShardKey applyOps authenticate autoCompact buildInfo bulkWrite collMod collStats
    commitTransaction compact connPoolStats connectionStatus convertToCapped cloneCollectionAsCapped count create
    createIndexes createRole createSearchIndexes createUser currentOp dataSize dbHash dbStats delete distinct
    drop dropAllRolesFromDatabase dropAllUsersFromDatabase dropConnections dropDatabase dropIndexes dropRole dropSearchIndex
    dropUser endSessions explain filemd5 find findAndModify fsync fsyncUnlock getClusterParameter getCmdLineOpts
    getDefaultRWConcern getLog getMore getParameter getShardVersion grantPrivilegesToRole grantRolesToRole grantRolesToUser hello
    hostInfo insert invalidateUserCache isMaster killAllSessions killAllSessionsByPattern killCursors killOp killSessions
    listCollections listCommands listDatabases listIndexes listSearchIndexes lockInfo logRotate logout mapReduce netstat ping
    planCacheClear planCacheClearFilters planCacheListFilters planCacheSetFilter profile reIndex refreshSessions
    removeQuerySettings renameCollection replSetAbortPrimaryCatchUp replSetFreeze replSetGetConfig replSetGetStatus
    replSetInitiate replSetMaintenance replSetReconfig replSetResizeOplog replSetStepDown replSetSyncFrom
    revokePrivilegesFromRole revokeRolesFromRole revokeRolesFromUser rolesInfo rotateCertificates saslContinue saslStart
    serverStatus setClusterParameter setDefaultRWConcern setFeatureCompatibilityVersion setIndexCommitQuorum setParameter
    setQuerySettings setUserWriteBlockMode shardingState shutdown startSession top update updateRole
    updateSearchIndex updateUser usersInfo validate validateDBMetadata whatsmyuri
"""


def error_of(ask):
    """The code of an operation's error, and its text."""
    try:
        ask()
    except OperationFailure as error:
        return error.code, (error.details or {}).get("errmsg", "")
    return 0, ""


def what_is_missing_is_named(client):
    """Who looks for a name in the list of what is not there finds it, and nothing in that list is there."""
    client.ops_names.c.insert_one({"_id": 1, "a": 1})
    collection = client.ops_names.c

    def aggregate(*stages):
        # One batch: a change stream never comes to an end.
        return lambda: collection.database.command("aggregate", "c", pipeline=list(stages), cursor={})

    missing = set()

    def look(names, code, ask):
        for name in names.split():
            found, text = error_of(ask(f"${name}"))
            if found in code and "nknown" in text or found == 40324:
                missing.add(f"${name}")

    # Some are there as an expression and not as an accumulator: one that is missing anywhere is to be named.
    look(STAGES, {40324}, lambda name: aggregate({name: {}}))
    look(EXPRESSIONS, {31325, 168}, lambda name: aggregate({"$project": {"x": {name: ["$a"]}}}))
    look(ACCUMULATORS, {15952}, lambda name: aggregate({"$group": {"_id": None, "x": {name: "$a"}}}))
    look(CONDITIONS, {2}, lambda name: lambda: collection.find_one({"a": {name: 1}}))
    look(WHOLE_CONDITIONS, {2}, lambda name: lambda: collection.find_one({name: 1}))
    look(UPDATES, {9}, lambda name: lambda: collection.update_one({"_id": 1}, {name: {"b": 1}}))
    commands = set(client.admin.command("listCommands")["commands"])
    missing |= set(COMMANDS.split()) - commands

    section = PAGE.read_text().split("\n## Not there yet\n")[1].split("\n## ")[0]
    # What is named is in the first column, what is done instead in the second one.
    named = {name for row in section.split("\n| ")[1:] for name in re.findall(r"`(\$?\w+)`", row.split(" | ")[0])}
    assert not missing - named, f"neither there nor in the list: {sorted(missing - named)}"
    every = {f"${name}" for name in f"{STAGES} {EXPRESSIONS} {ACCUMULATORS} {CONDITIONS} {WHOLE_CONDITIONS} {UPDATES}".split()}
    # These are known by name, and refused with an error of their own.
    refused = {"$search", "$searchMeta", "$vectorSearch"}
    there = (named & (every | set(COMMANDS.split()))) - missing - refused
    assert not there, f"in the list, but there: {sorted(there)}"
    client.drop_database("ops_names")
