"""What the checks share."""

import pymongo
from pymongo.errors import OperationFailure


def connect(server, user=None, password=None, **options):
    """A client of the server, as this user."""
    if user is not None:
        options = {"username": user, "password": password, "authSource": "admin", **options}
    return pymongo.MongoClient(
        server.uri, retryWrites=False, retryReads=False, serverSelectionTimeoutMS=20_000, **options
    )


def fails(code, action, words=None):
    """The action must fail with this code (and these words)."""
    try:
        result = action()
    except OperationFailure as error:
        assert error.code == code, f"code {error.code}, not {code}: {error}"
        if words is not None:
            assert words in error.details["errmsg"], f"{words!r} is not in {error.details['errmsg']!r}"
        return
    raise AssertionError(f"no error {code}: {result}")


def command_fails(code, db, *command, words=None, **options):
    """The command must fail with this code (and these words)."""
    fails(code, lambda: db.command(*command, **options), words)
