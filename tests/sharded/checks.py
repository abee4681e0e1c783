"""How checks of sharded clusters are noted, and what they share."""

from pymongo.errors import OperationFailure

SHARED, OWN = [], []


def check(test):
    """On a cluster of two shards that all of these share."""
    SHARED.append(test)
    return test


def alone(**topology):
    """On a cluster of its own."""
    def note(test):
        OWN.append((test, topology))
        return test
    return note


def refused(code, run):
    try:
        run()
    except OperationFailure as error:
        assert error.code == code, f"{error.code}: {error}"
        return error
    raise AssertionError(f"not refused: {code}")
