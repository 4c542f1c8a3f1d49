#!/usr/bin/env python3
"""Checks the layers: an include goes down to a lower layer, or stays in its own folder (docs/architecture.md).

Checks public and private headers. Needs no compiler. Prints each include that goes up or sideways, and exits with 1 if
there is one.
"""
import pathlib
import re
import sys

# From the bottom up. Folders on one line are in the same layer and never include each other.
LAYERS = [
    ["base"],
    ["sys"],
    ["store"],
    ["rank_env"],
    ["layout", "plan"],
    ["matmul"],
    ["comm/call"],
    ["comm/kernels"],
    ["comm/rendezvous"],
    ["comm/diagnose"],
    ["comm/backend"],
    ["comm/api"],
    ["comm/backends/local", "comm/backends/shm", "comm/backends/c10d", "comm/backends/mpi", "comm/backends/hierarchical"],
    ["comm/init"],
    ["mesh"],
    ["dispatch"],
    ["global"],
    ["module"],
    ["optim", "data", "models"],
    ["parallel"],
    ["checkpoint"],
    ["hub", "elastic", "launch"],
    ["train"],
    ["apps"],
]
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
# Public headers of comm are in one folder; these belong to other layers than comm/api.
PUBLIC_OF_COMM = {
    "comm/call.h": "comm/call",
    "comm/backend.h": "comm/backend",
    "comm/local.h": "comm/backends/local",
    "comm/c10d.h": "comm/backend",
    "comm/init.h": "comm/init",
    "comm/device.h": "comm/init",
}

# Folders and files that must compile without LibTorch, and so see nothing of the others.
WITHOUT_LIBTORCH = (
    "base", "sys", "store", "rank_env", "launch", "layout", "plan", "comm/call.h", "comm/call", "comm/kernels", "comm/rendezvous", "comm/diagnose",
    "comm/backends/shm", "comm/backends/mpi/plan",
    "comm/backends/hierarchical/layout",
)
WITH_LIBTORCH = ("comm/backends/shm/backend", "comm/backends/shm/tensor_allocator")   # exceptions inside of them
LIBTORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')


def folder_of(path):
    """The layer (folder) of a path below include/lockstep, src or tests; None for what belongs to no layer."""
    name = path.as_posix()
    if name in PUBLIC_OF_COMM:
        return PUBLIC_OF_COMM[name]
    for length in (3, 2, 1):
        folder = "/".join(path.parts[:length])
        if len(path.parts) > length and folder in LEVEL:
            return folder
    return "comm/api" if path.parts[0] == "comm" else None


def is_without_libtorch(path):
    """Whether a path below include/lockstep or src belongs to what compiles without LibTorch."""
    def belongs_to(names):
        name = path.as_posix()
        return any(name == each or name.startswith((each + "/", each + ".")) for each in names)
    return belongs_to(WITHOUT_LIBTORCH) and not belongs_to(WITH_LIBTORCH)


def strategy_of(path):
    """parallel/data, parallel/tensor, ...: strategies are folders of one layer and do not include each other."""
    return path.parts[1] if path.parts[0] == "parallel" and len(path.parts) > 2 else None


def target_of(include, root):
    """The path below its tree that an include names, if it is one of ours."""
    if include.startswith("lockstep/"):
        path = pathlib.PurePath(include).relative_to("lockstep")
        return path if len(path.parts) > 1 else None
    if (root / "src" / include).exists():
        return pathlib.PurePath(include)
    return None


def problems_of(path, relative, root):
    own = folder_of(relative)
    if own is None:
        return
    without_libtorch = is_without_libtorch(relative)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        where = f"{path.relative_to(root)}:{number}"
        if without_libtorch and LIBTORCH.match(match[1]):
            yield f"{where}: {own} is a layer without LibTorch, but includes {match[1]}"
        target = target_of(match[1], root)
        other = folder_of(target) if target else None
        if other is None:
            continue
        if other != own and LEVEL[other] >= LEVEL[own]:
            yield f"{where}: {own} includes {match[1]}, which is in a higher layer or in the same layer ({other})"
        elif without_libtorch and not is_without_libtorch(target):
            yield f"{where}: {relative} is without LibTorch, but includes {match[1]}, which is not"
        mine, theirs = strategy_of(relative), strategy_of(target)
        if mine and theirs and mine != theirs:
            yield f"{where}: parallel/{mine} includes parallel/{theirs}"


def main(root):
    problems, count = [], 0
    for tree in ("include/lockstep", "src"):
        for path in sorted((root / tree).rglob("*")):
            if path.suffix in (".h", ".cc"):
                count += 1
                problems += problems_of(path, path.relative_to(root / tree), root)
    print("\n".join(problems) if problems else f"layers: {count} files, every include goes down")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
