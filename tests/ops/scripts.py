"""The scripts that build and start."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

from common import ends_with
from sheaf_process import find_binary

HERE = pathlib.Path(__file__).resolve().parent


def start_script(_):
    """scripts/start knows the server's flags, and refuses what is wrong before it makes or builds anything."""
    script = HERE.parents[1] / "scripts" / "start"
    told = subprocess.run([find_binary(), "server", "--help"], capture_output=True, text=True, check=True).stdout
    flags = dict(re.findall(r"^ +(?:-\w, )?(--[\w-]+)(?:\.\.\.)?( \[?<[^>]+>)?", told, re.M))
    listed = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    known = dict(re.findall(r"(--[\w-]+)(=VALUE)?", listed.split("\n", 2)[2].rsplit("\n", 2)[0]))
    # Another name of a flag.
    assert known.pop("--log-rotate") == "=VALUE"
    takes_value = lambda found: {name: bool(value) for name, value in found.items()}  # noqa: E731
    assert takes_value(known) == takes_value(flags), set(takes_value(known).items()) ^ set(takes_value(flags).items())

    home = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-start-"))
    try:
        for name in ("cargo", "rustc", "apt-get", "sudo"):
            program = home / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\necho {name} $* >> {home}/called\nexit 1\n")
            program.chmod(0o755)
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("SHEAF", "CARGO", "XDG"))}
        environment = {**keep, "HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = str(other.getsockname()[1])
            for arguments, status, text in [
                (["--help"], 0, "--dbpath"),
                (["--nonesuch"], 2, "--nonesuch"),
                (["data"], 2, "data"),
                (["--dbpath", "data", "--port"], 2, "--port needs a value"),
                (["--dbpath", "data", "--port", "many"], 2, "no port"),
                (["--dbpath", "data", "--port=65536"], 2, "no port"),
                (["--dbpath", "data", "--port", taken], 2, "in use"),
                (["--config", "nonesuch.conf"], 2, "nonesuch.conf"),
            ]:
                ends_with([script, *arguments], status, text, env=environment, cwd=home)
                made = [path.name for path in home.iterdir() if path.name != "bin"]
                assert not made, f"{arguments}: {made}"
    finally:
        shutil.rmtree(home)


def prerequisites_that_cannot_be_had(_):
    """Where a prerequisite cannot be had it is said what to do, and nothing is installed before."""
    library = HERE.parents[1] / "scripts" / "lib.sh"
    home = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-start-"))
    called = home / "called"

    def ensure(*texts, cargo, known):
        """With this cargo, and an apt that knows these packages."""
        programs = {
            "cargo": f"echo cargo {cargo} 2023-01-01" if cargo else "exit 127",
            "rustup": "exit 1",
            "sudo": '"$@"',
            "dpkg-query": "exit 1",
            "apt-get": f"echo apt-get $* >> {called}",
            "apt-cache": "case $2 in " + "".join(f"{name}) echo '  Candidate: {version}' ;; " for name, version in known.items()) + "esac",
        }
        for name, text in programs.items():
            program = home / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        environment = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
        ends_with(["bash", "-c", f". {library}; ensure_build_tools python3"], 1, "nothing was installed", *texts, env=environment)
        assert " install" not in called.read_text(), called.read_text()
        made = [path.name for path in home.iterdir() if path.name not in ("bin", "called")]
        assert not made, made

    try:
        tools = dict.fromkeys("build-essential clang mold pkg-config libpcre2-dev ca-certificates python3".split(), "1:14.0-55.7")
        # What a Debian 12 of `main` alone has.
        ensure("-updates", "-security", "rustup", "found: 0.66.0", cargo="0.66.0", known={**tools, "cargo": "0.66.0"})
        ensure("-updates", "found: none", cargo=None, known=tools)
        del tools["mold"]
        ensure("no package mold", cargo="9.99.0", known=tools)
    finally:
        shutil.rmtree(home)


def rocksdb_is_compiled_once(_):
    """Of two scripts that find RocksDB missing at once, one compiles it; the other says that it waits, and takes what was made."""
    script = HERE.parents[1] / "scripts" / "rocksdb"
    home = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-rocksdb-"))
    try:
        crates = [home / f"{name}-1.0" for name in ("librocksdb-sys", "lz4-sys", "zstd-sys")]
        for crate in crates:
            crate.mkdir()
        (crates[0] / "rocksdb" / "options").mkdir(parents=True)
        sources = ["a.cc", "options/b.cc"]
        for source in sources:
            (crates[0] / "rocksdb" / source).touch()
        (crates[0] / "build_version.cc").touch()
        (crates[0] / "rocksdb_lib_sources.txt").write_text("\n".join(sources) + "\n")
        manifests = ",".join(f'\\"manifest_path\\":\\"{crate}/Cargo.toml\\"' for crate in crates)
        go_on = home / "go-on"
        programs = {
            "rustc": "echo host: here",
            "cargo": f'echo "{manifests}"',
            # What it is asked to compile it writes where it is to; and it waits until both scripts have begun.
            "clang++": f'[ "$1" = -dumpversion ] && exec echo 0\necho $* >>{home}/compiled\n'
            f"while ! [ -e {go_on} ]; do sleep 0.05; done\nfor last; do :; done\ntouch $last",
            "ar": "touch $2",
        }
        for name, text in programs.items():
            program = home / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        environment = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
        start = lambda: subprocess.Popen([script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)  # noqa: E731
        running = [start(), start()]
        # Who waits is the only one that says so, before anything is done.
        waiting = []
        for process in running:
            for line in process.stderr:
                if "waiting for another script" in line:
                    waiting.append(process)
                if line.startswith("== "):
                    break
        go_on.touch()
        printed = [process.communicate(timeout=60)[0] for process in running]
        assert [process.returncode for process in running] == [0, 0]
        assert len(waiting) == 1, waiting
        assert printed[0] == printed[1] and pathlib.Path(printed[0].strip(), "librocksdb.a").is_file(), printed
        compiled = (home / "compiled").read_text().splitlines()
        names = [re.search(r"-c (\S+)", line)[1] for line in compiled]
        assert len(names) == len(set(names)), f"compiled twice: {names}"
    finally:
        shutil.rmtree(home)


CHECKS = [start_script, prerequisites_that_cannot_be_had, rocksdb_is_compiled_once]
