"""Jobs in several processes beside each other: for those that wait more than they work."""

import json
import os
import random
import sys
import tempfile
import traceback


def in_lanes(jobs, run, lanes):
    """Gives what `run(number of the job)` gives for each, in any order; it must be JSON. One lane is this process.

    Each lane takes the next job when it is through with its last, so long ones should come first. What others print is shown at the end.
    Nothing may have been started that a fork would double: threads, clients.
    """
    assert len(jobs) <= 256, "a job's number is a byte"
    taken, given = os.pipe()
    os.write(given, bytes(range(len(jobs))))
    os.close(given)
    others = [_begin(taken, run) for _ in range(min(lanes, len(jobs)) - 1)]
    results = list(_work(taken, run))
    for pid, output, told in others:
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        print(output.read(), end="", flush=True)
        told.seek(0)
        results += json.load(told) if status == 0 else [None]
    os.close(taken)
    # A lane that ended has taken a job with it, and jobs that nobody has taken are not done either.
    assert len(results) == len(jobs) and None not in results, f"of {len(jobs)} jobs {len([r for r in results if r is not None])} have ended"
    return results


def _work(taken, run):
    while job := os.read(taken, 1):
        yield run(job[0])


def _begin(taken, run):
    output, told = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid, output, told
    status = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        # Else all would take the same ports.
        random.seed()
        json.dump(list(_work(taken, run)), told)
        told.flush()
        status = 0
    except BaseException:  # noqa: BLE001 - it must not go on as the process that it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
