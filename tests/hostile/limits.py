"""What the server has: 512 MB of memory, a disk of 1 GB, and few descriptors.

Memory is limited by a control group (version 1 or 2) where one can be made; otherwise a watchdog ends a server that has
taken more. The disk is a file system in a file where it can be mounted (its pages are no memory of the control group that
cannot be taken back, as those of a tmpfs are); otherwise a library in the server says that there is no space
(tests/support/disk.py).
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

MB = 1 << 20
# Half of the aim's machine is given by default; what is open at that size is in docs/fault-run.md.
MEMORY_BYTES = int(os.environ.get("SHEAF_HOSTILE_MB", "512")) * MB
DISK_BYTES = 1024 * MB
# Beyond the limit when nobody but the watchdog enforces it: it looks only now and then.
SLACK_BYTES = 64 * MB
SPARE_DESCRIPTORS = 64


class ControlGroup:
    """A control group with a limit of memory. `folder` is None where none can be made."""

    def __init__(self, name, limit=MEMORY_BYTES):
        self.folder, self.version = None, None
        for version, parent in self.parents():
            folder = parent / name
            try:
                folder.mkdir()
                self.version, self.folder = version, folder
                self.write("memory.limit_in_bytes" if version == 1 else "memory.max", limit)
                return
            except OSError:
                if folder.is_dir():
                    folder.rmdir()
                self.folder = None

    def parents(self):
        """Where this process is, in either hierarchy."""
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                for parent in (pathlib.Path("/sys/fs/cgroup/memory" + path), pathlib.Path("/sys/fs/cgroup/memory")):
                    yield 1, parent
            elif not controllers:
                yield 2, pathlib.Path("/sys/fs/cgroup" + path)
                yield 2, pathlib.Path("/sys/fs/cgroup")

    def write(self, name, value):
        (self.folder / name).write_text(str(value))

    def peak(self):
        """Pages of files count too, so this reaches the limit without harm."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return 0

    def through(self, descriptors):
        """What a command is started through to be a process of this group, with so many descriptors at most."""
        parts = [f"ulimit -n {descriptors}"] if descriptors else []
        parts += [f'echo $$ > "{self.folder}/cgroup.procs"'] if self.folder else []
        return ["sh", "-c", " && ".join([*parts, 'exec "$@"']), "sh"]

    def cleanup(self):
        for _ in range(100):
            if not self.folder:
                return
            try:
                self.folder.rmdir()
                self.folder = None
            except OSError:
                # Its last process is on its way out.
                time.sleep(0.05)


class Watchdog:
    """Looks at a server's memory and ends it beyond the limit, if asked to."""

    def __init__(self, limit):
        self.limit, self.peak, self.verdict = limit, 0, None
        self.pid = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopping.wait(0.05):
            pid = self.pid
            used = resident(pid) if pid else 0
            self.peak = max(self.peak, used)
            if self.limit and used > self.limit and not self.verdict:
                self.verdict = f"the server had {used // MB} MB of memory, {self.limit // MB} MB were allowed"
                os.kill(pid, 9)

    def stop(self):
        self.stopping.set()
        self.thread.join()


def resident(pid):
    """The anonymous memory of a process, which no kernel can take back without swapping."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class MountedDisk:
    """A file system of 1 GB in a file."""

    kind = "ext4 in a file"

    def __init__(self, size=DISK_BYTES):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-hostile-"))
        self.image, self.folder = self.top / "image", self.top / "disk"
        self.folder.mkdir()
        self.mounted = False
        with open(self.image, "wb") as image:
            image.truncate(size)
        for command in (["mkfs.ext4", "-q", "-F", "-m", "0", str(self.image)], ["mount", "-o", "loop", str(self.image), str(self.folder)]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                self.cleanup()
                raise OSError(done.stderr.strip())
        self.mounted = True
        self.ballast = self.folder / "ballast"
        self.env = {}

    def free(self):
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, leave=0):
        """Takes all room but `leave` bytes."""
        with open(self.ballast, "ab") as file:
            while (room := self.free() - leave) > 0:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, max(min(room, 64 * MB), 4096))
                except OSError:
                    if room < MB or leave:
                        return
                    time.sleep(0.01)

    def make_room(self):
        self.ballast.unlink(missing_ok=True)

    def cleanup(self, keep=False):
        if keep and self.mounted:
            # What is kept must outlive the mount.
            shutil.copytree(self.folder, self.top / "kept", dirs_exist_ok=True, ignore=shutil.ignore_patterns("ballast", "lost+found"))
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)
            self.mounted = False
        self.image.unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(self.top, ignore_errors=True)


class PretendedDisk:
    """A folder whose library says that the disk is full."""

    kind = "a library that refuses writes"

    def __init__(self):
        from disk import Disk
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-hostile-"))
        self.folder = self.top / "disk"
        self.folder.mkdir()
        self.disk = Disk(self.folder)
        self.env = self.disk.env

    def free(self):
        used = sum(found.st_blocks * 512 for _, found in self.disk.files())
        return max(DISK_BYTES - used, 0)

    def fill(self, leave=0):
        self.disk.full(True)

    def make_room(self):
        self.disk.full(False)

    def cleanup(self, keep=False):
        self.disk.cleanup()
        if not keep:
            shutil.rmtree(self.top, ignore_errors=True)


def small_disk():
    """The best that this machine allows."""
    try:
        return MountedDisk()
    except OSError:
        return PretendedDisk()


def open_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
