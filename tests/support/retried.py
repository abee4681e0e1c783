"""Retryable writes as a driver means them to be."""

import time

from pymongo.errors import NotPrimaryError


def retried(write):
    """Runs a write that the driver tries once more where a member refuses it.

    PyMongo looks twice at what it knows of a member: to choose it as the primary, and for whether writes can be repeated there. Where
    the member has stepped down between the two, it sends the write as one that cannot be repeated, and tells of the refusal, which
    has no label then. A refused write has not happened.
    """
    until = time.monotonic() + 60
    while True:
        try:
            return write()
        except NotPrimaryError as error:
            if error.has_error_label("RetryableWriteError") or time.monotonic() > until:
                raise
