"""Shared by tidy.py and alone.py: checks each translation unit of a build once until one of its dependencies changes.

A unit that passes leaves a stamp in the build folder. It is checked again if the tool, its settings, its command, its
source or an included header of ours has changed. So an interrupted run continues where it stopped.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(rb'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
FOLDERS = [ROOT / "include", ROOT / "src", ROOT / "tests", ROOT / "bench"]   # folders to search for includes


def commands_of(build):
    """Returns the compile command of each unit of BUILD: {path: list of words}."""
    commands = json.loads((build / "compile_commands.json").read_text())
    return {pathlib.Path(one["file"]): shlex.split(one["command"]) for one in commands}


@functools.cache
def included_by(path):
    """Returns our files that `path` includes directly."""
    found = []
    for kind, name in INCLUDE.findall(path.read_bytes()):
        near = [path.parent] if kind == b'"' else []
        places = [folder / name.decode() for folder in near + FOLDERS]   # an absolute name stays as it is
        found += [place for place in places if place.is_file()][:1]
    return found


@functools.cache
def digest(path):
    return hashlib.sha256(path.read_bytes()).digest()


def fingerprint(settings, source, command):
    """Returns a fingerprint of everything that the result depends on, except LibTorch and the system."""
    forced = [pathlib.Path(word) for word in command if word.endswith("cmake_pch.hxx")]
    seen, left = set(), [source, *forced]
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            left += included_by(path)
    total = hashlib.sha256(settings + shlex.join(command).encode())
    for path in sorted(seen):
        total.update(str(path).encode() + digest(path))
    return total.hexdigest()


def look_at(name, build, commands, settings, check):
    """Runs `check(source, command)`, which returns (exit code, text), and prints the text. Returns an exit code."""
    stamps = build / "stamps" / name
    stamps.mkdir(parents=True, exist_ok=True)

    def one(item):
        source, command = item
        stamp, now = stamps / str(source).replace("/", "_"), fingerprint(settings, source, command)
        if stamp.is_file() and stamp.read_text() == now:
            return source, 0, "", False
        code, text = check(source, command)
        if code < 0:   # a signal ended it
            raise SystemExit(f"{name}: interrupted")
        if code == 0:
            stamp.write_text(now)
        return source, code, text, True

    bad = same = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, code, text, was_looked_at in pool.map(one, sorted(commands.items())):
            same += not was_looked_at
            if code != 0:
                bad += 1
                print(f"{source}:\n{text}", flush=True)
    print(f"{name}: {len(commands)} translation units, {bad} with findings, {same} as they were")
    return 1 if bad else 0
