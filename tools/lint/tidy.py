#!/usr/bin/env python3
"""clang-tidy over the sources of the library and of the programs.

    tidy.py CLANG-TIDY BUILD                 all of them, in the batches in which the preset `tidy` compiles them
    tidy.py CLANG-TIDY BUILD SOURCE...       these, as BUILD compiles each by itself

BUILD has compile_commands.json and the precompiled header. A batch costs about as much time as one source, most of which
is LibTorch's headers.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

# Folders of the build tree that hold what is not checked.
UNCHECKED = ("tests", "bench", "examples")
CHECKS = "--checks=-bugprone-suspicious-include"   # of a .cc file: that is what a batch is


def sources_of(build, root):
    """What BUILD compiles of the library and the programs: their sources, and batches of them."""
    for command in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(command["file"])
        if path.is_relative_to(root / "src"):
            yield path
        elif path.is_relative_to(build) and "Unity" in path.parts and path.relative_to(build).parts[0] not in UNCHECKED:
            yield path


def check(tool, build, source):
    done = subprocess.run([tool, "-p", str(build), "--quiet", "--warnings-as-errors=*", CHECKS, str(source)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return source, done.returncode, done.stdout + (done.stderr if done.returncode and not done.stdout else "")


def main(tool, build, names):
    root, build = pathlib.Path(__file__).resolve().parents[2], pathlib.Path(build).resolve()
    known = sorted(set(sources_of(build, root)))
    wanted = {(root / name).resolve() for name in names}
    chosen = [source for source in known if source in wanted] if names else known
    if not names and not any("Unity" in source.parts for source in chosen):
        sys.exit(f"tidy: {build} compiles no batches")
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, code, output in pool.map(lambda source: check(tool, build, source), chosen):
            if code != 0:
                bad += 1
                print(f"{source}:\n{output}", flush=True)
    print(f"tidy: {len(chosen)} translation units, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]) if len(sys.argv) > 2 else __doc__)
