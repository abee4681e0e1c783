"""Starts and stops Sheaf servers for the tests.

Only the standard library is used, so that every test program can import this before any driver is installed.
"""

import contextlib
import fcntl
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def cache_dir():
    """Where the tests keep what they downloaded (virtualenv, node_modules, sources)."""
    path = pathlib.Path(os.environ.get("SHEAF_CACHE", pathlib.Path.home() / ".cache" / "sheaf"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def find_binary():
    """The server binary: $SHEAF_BIN, or what was built last for the tests, or as release, in the usual target directories."""
    if os.environ.get("SHEAF_BIN"):
        return pathlib.Path(os.environ["SHEAF_BIN"]).resolve()
    candidates = []
    if os.environ.get("CARGO_TARGET_DIR"):
        candidates.append(pathlib.Path(os.environ["CARGO_TARGET_DIR"]))
    candidates += [cache_dir() / "target", REPOSITORY / "target"]
    for target in candidates:
        built = [path for path in (target / "tests" / "sheaf", target / "release" / "sheaf") if path.exists()]
        if built:
            return max(built, key=lambda path: path.stat().st_mtime)
    raise SystemExit("no sheaf binary found: build it with `cargo build --profile tests -p sheaf` or set SHEAF_BIN")


# Given away by `free_port`, so that none is given away twice: a name in the kernel that this process, and those forked from it, have until
# they end. Another process of tests would find nobody listening before the server has begun.
_GIVEN = {}


def claim(port):
    """Whether this process has the port for itself from now on."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0sheaf-tests-port-{port}")
    except OSError:
        name.close()
        return False
    _GIVEN[port] = name
    return True


def _first_of_the_kernel():
    try:
        return int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def free_port():
    """A TCP port that nobody listens on.

    It is bound later, and a server that was killed leaves it alone for a while. So it is none of those that the kernel
    gives to outgoing connections and to whoever asks for any port.
    """
    last = _first_of_the_kernel()
    for _ in range(1000):
        port = random.randrange(10_000, last) if last > 11_000 else 0
        if port in _GIVEN or 27_000 <= port < 27_100:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                probe.listen()
            except OSError:
                continue
            port = probe.getsockname()[1]
        if claim(port):
            return port
    raise RuntimeError("there is no free port")


# {hello: 1, $db: "admin"} as one OP_MSG: enough to know that the server answers commands.
_HELLO_BODY = b"\x10hello\x00\x01\x00\x00\x00\x02$db\x00\x06\x00\x00\x00admin\x00"
_HELLO_DOC = struct.pack("<i", len(_HELLO_BODY) + 5) + _HELLO_BODY + b"\x00"


def answers_hello(port, timeout=5.0):
    """True when a server on this port replies to `hello`."""
    body = struct.pack("<IB", 0, 0) + _HELLO_DOC
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(struct.pack("<iiii", len(body) + 16, 1, 0, 2013) + body)
            return len(connection.recv(16)) == 16
    except OSError:
        return False


class Server:
    """One `sheaf server` process with its own data folder and port, on the loopback interface."""

    def __init__(self, args=(), dbpath=None, port=None, log=None, binary=None):
        self.binary = binary or find_binary()
        self.args = list(args)
        self.own_dbpath = dbpath is None
        self.dbpath = pathlib.Path(dbpath or tempfile.mkdtemp(prefix="sheaf-test-"))
        self.port = port or free_port()
        self.log_path = pathlib.Path(log or f"{self.dbpath}.log")
        # What the process has in its environment besides the test's own.
        self.env = {}
        # What it is started through: a program that sets limits and then becomes the server.
        self.through = []
        self.process = None

    @property
    def uri(self):
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    @property
    def command(self):
        return [
            *self.through, str(self.binary), "server", "--dbpath", str(self.dbpath), "--port", str(self.port),
            "--bind_ip", "127.0.0.1", *self.args,
        ]

    def start(self, timeout=120.0):
        """Starts the process and returns the seconds until it answered its first command."""
        self.dbpath.mkdir(parents=True, exist_ok=True)
        log = open(self.log_path, "ab")
        began = time.monotonic()
        self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **self.env})
        log.close()
        while True:
            # Asked first: who answers may be another server, if this one has found its port taken.
            answered = self.answers()
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log_tail()}")
            if answered:
                break
            if time.monotonic() - began > timeout:
                self.kill()
                raise RuntimeError(f"the server did not answer in {timeout} s:\n{self.log_tail()}")
            time.sleep(0.005)
        return time.monotonic() - began

    def answers(self):
        """Whether it answers commands by now."""
        return answers_hello(self.port)

    def log_tail(self, lines=30):
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def kill(self):
        """SIGKILL: the crash that the durability tests want."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self, timeout=120.0):
        """Clean shutdown by SIGTERM; returns the exit code. A server that does not end is killed and reported."""
        if not self.process or self.process.poll() is not None:
            return self.process.returncode if self.process else None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the server ignored SIGTERM for {timeout} s:\n{self.log_tail()}") from None

    def cleanup(self):
        """Ends the process and removes what it left, unless $SHEAF_KEEP asks to keep it. No password of the tests may stand in its log."""
        self.kill()
        # Whoever was killed could not remove it.
        pathlib.Path(tempfile.gettempdir(), f"mongodb-{self.port}.sock").unlink(missing_ok=True)
        leaked = secrets_in(self.log_path)
        self._remove()
        if leaked:
            raise AssertionError(f"secrets stand in a server's log: {leaked}")

    def _remove(self):
        if os.environ.get("SHEAF_KEEP"):
            print(f"kept: {self.dbpath} {self.log_path}")
            return
        if self.own_dbpath:
            shutil.rmtree(self.dbpath, ignore_errors=True)
            self.log_path.unlink(missing_ok=True)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(f"--- end of the server's log ({self.log_path})\n{self.log_tail()}")
        self.cleanup()


# The tests' passwords are made to be found: a word and four figures. Keys begin with a line of their own.
PLANTED = re.compile(rb"(?:pencil|quill|chalk|slate|sponge)-77\d\d|-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}")


def secrets_in(path):
    """The tests' secrets that stand in a file, each with what stands around it."""
    try:
        text = pathlib.Path(path).read_bytes()
    except OSError:
        return []
    return [text[max(0, found.start() - 200):found.end() + 50] for found in PLANTED.finditer(text)][:3]


def stand_still(process):
    """SIGSTOP, and waits until each thread of the process has stopped: on a busy machine one may go on for a while, and answer."""
    os.kill(process.pid, signal.SIGSTOP)
    until = time.monotonic() + 30
    while any(state not in "TZX" for state in _states(process.pid)):
        if time.monotonic() > until:
            raise RuntimeError(f"process {process.pid} does not stop")
        time.sleep(0.001)


def _states(pid):
    """The letters of `man 5 proc_pid_stat` for a process's threads."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            yield (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            pass  # It has ended meanwhile.


@contextlib.contextmanager
def alone(what):
    """Holds back every other process that makes the same thing in the cache: suites run beside each other, also where nothing is there yet."""
    with open(cache_dir() / f"{what}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def venv_python(packages):
    """The interpreter of the cached virtualenv, after installing whatever of `packages` it lacks."""
    with alone("venv"):
        return filled_venv(packages)


def filled_venv(packages):
    venv = cache_dir() / "venv"
    python = venv / "bin" / "python"
    # Without the package python3-venv there is a python and no pip, and an exception.
    if not (python.exists() and (venv / "bin" / "pip").exists()):
        subprocess.run(["python3", "-m", "venv", "--clear", str(venv)], check=True)
    stamp = venv / "installed.txt"
    have = set(stamp.read_text().split()) if stamp.exists() else set()
    missing = [package for package in packages if package not in have]
    if missing:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *missing], check=True)
        stamp.write_text("\n".join(sorted(have | set(missing))) + "\n")
    return str(python)
