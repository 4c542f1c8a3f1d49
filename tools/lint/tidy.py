#!/usr/bin/env python3
"""Runs clang-tidy over the sources of the library and of the programs.

    tidy.py CLANG-TIDY BUILD                 all of them, in the batches in which the preset `tidy` compiles them
    tidy.py CLANG-TIDY BUILD SOURCE...       these, as BUILD compiles each by itself

BUILD has compile_commands.json and the precompiled header. A batch takes about as long as one source, because most of
the time is spent on LibTorch's headers.
"""
import pathlib
import subprocess
import sys

import units

# Folders of the build tree whose files are not checked.
UNCHECKED = ("tests", "bench", "examples", "headers_alone")
CHECKS = "--checks=-bugprone-suspicious-include"   # a batch includes .cc files


def is_checked(path, build):
    if path.is_relative_to(build):
        return "Unity" in path.parts and path.relative_to(build).parts[0] not in UNCHECKED
    return path.is_relative_to(units.ROOT / "src")


def main(tool, build, names):
    build = pathlib.Path(build).resolve()
    wanted = {(units.ROOT / name).resolve() for name in names}
    commands = {path: command for path, command in units.commands_of(build).items()
                if is_checked(path, build) and (path in wanted or not names)}
    if not names and not any("Unity" in path.parts for path in commands):
        sys.exit(f"tidy: {build} compiles no batches")
    settings = subprocess.check_output([tool, "--version"]) + (units.ROOT / ".clang-tidy").read_bytes() + CHECKS.encode()

    def check(source, _):
        done = subprocess.run([tool, "-p", str(build), "--quiet", "--warnings-as-errors=*", CHECKS, str(source)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stdout + (done.stderr if done.returncode and not done.stdout else "")

    return units.look_at("tidy", build, commands, settings, check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]) if len(sys.argv) > 2 else __doc__)
