#!/usr/bin/env python3
"""Checks the list of tools/mutants.py: each source exists, and the text that a mistake replaces occurs exactly once.
"""
import collections
import importlib.util
import pathlib
import sys

sys.dont_write_bytecode = True


def problems_of(mutants, root):
    for name, count in collections.Counter(mutant[0] for mutant in mutants).items():
        if count > 1:
            yield f"tools/mutants.py: {count} mistakes are called '{name}'"
    for name, source, before, after, *_ in mutants:
        path = root / "src" / source
        if not path.exists():
            yield f"tools/mutants.py: '{name}': src/{source} is not there"
            continue
        count = path.read_text().count(before)
        if count != 1:
            yield f"tools/mutants.py: '{name}': expected once in src/{source}, found {count} times: {before!r}"
        if "MUTANT" not in after:
            yield f"tools/mutants.py: '{name}': expected MUTANT in what stands there instead: {after!r}"


def main(root):
    spec = importlib.util.spec_from_file_location("mutants", root / "tools/mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    problems = list(problems_of(module.MUTANTS, root))
    print("\n".join(problems) if problems else f"mutants: each of {len(module.MUTANTS)} mistakes has its place")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
