#!/usr/bin/env python3
"""Checks the floors: an include only goes to a higher floor or stays in its own folder (docs/architecture.md).

Needs no compiler. Prints each include that goes down or sideways, and exits with 1 if there is one.
"""
import pathlib
import re
import sys

# Top first. Folders on one line are the same floor and never include each other.
FLOORS = [
    ["base"],
    ["sys"],
    ["store"],
    ["launch"],
    ["layout"],
    ["comm/shm"],
    ["comm"],
    ["mesh"],
    ["dispatch"],
    ["module"],
    ["optim", "data", "models"],
    ["parallel"],
    ["checkpoint"],
    ["recipes"],
    ["train", "plan"],
    ["apps"],
]
WITHOUT_LIBTORCH = {"base", "sys", "store", "launch", "layout", "comm/shm", "plan"}
LEVEL = {folder: level for level, folders in enumerate(FLOORS) for folder in folders}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
LIBTORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")


# The words of comm and the order of its sums, which know no LibTorch: they belong to the floor of the shared-memory engine.
WORDS_OF_COMM = {"comm/op.h", "comm/op.cc", "comm/tree.h"}


def folder_of(path):
    """The floor folder of a path below include/lockstep, src or tests; None for what belongs to no floor."""
    parts = path.parts
    if parts[:2] == ("comm", "shm") or path.as_posix() in WORDS_OF_COMM:
        return "comm/shm"
    return parts[0] if parts and parts[0] in LEVEL else None


def strategy_of(path):
    """parallel/data, parallel/tensor, ...: strategies are folders of one floor and do not include each other."""
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
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        where = f"{path.relative_to(root)}:{number}"
        if own in WITHOUT_LIBTORCH and LIBTORCH.match(match[1]):
            yield f"{where}: {own} is a floor without LibTorch, but includes {match[1]}"
        target = target_of(match[1], root)
        other = folder_of(target) if target else None
        if other is None:
            continue
        if other != own and LEVEL[other] >= LEVEL[own]:
            yield f"{where}: {own} includes {match[1]}, which is on a lower floor or beside it ({other})"
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
    print("\n".join(problems) if problems else f"floors: {count} files, every include goes up")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
