"""PyMongo's source distribution: its tests, and the specifications' test files that it carries."""

import shutil
import subprocess
import tarfile

from sheaf_process import alone, cache_dir

VERSION = "4.20.0"


def pymongo_source(python):
    """The folder with `test`, `tools` and `pyproject.toml` of the distribution, fetched once by this interpreter's pip."""
    home = cache_dir() / "pymongo-suite" / VERSION
    with alone("pymongo-suite"):
        if not (home / "ready").exists():
            fetch(home, python)
    return home


def fetch(home, python):
    """Makes the folder."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    download = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "pymongo", f"pymongo=={VERSION}"]
    subprocess.run(download, cwd=home, check=True)
    with tarfile.open(home / f"pymongo-{VERSION}.tar.gz") as archive:
        # Older Pythons (3.11.2 of Debian 12) know no filters.
        archive.extractall(home, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    unpacked = home / f"pymongo-{VERSION}"
    for part in ("test", "tools", "pyproject.toml"):
        (unpacked / part).rename(home / part)
    shutil.rmtree(unpacked)
    (home / "ready").touch()
