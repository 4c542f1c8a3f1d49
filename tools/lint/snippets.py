#!/usr/bin/env python3
"""Checks that the code in documents runs: every C++ block is, line for line, part of a file under examples/ or of the
user's program of the integration tests.

A block may omit the indentation that all of its lines share. Examples and that program are built and run as tests.
"""
import pathlib
import re
import sys
import textwrap

BLOCK = re.compile(r"^```cpp\n(.*?)^```", re.DOTALL | re.MULTILINE)


def normalised(text):
    return textwrap.dedent("\n".join(line.rstrip() for line in text.strip("\n").split("\n")))


def stands_in(block, source):
    """Returns True if the lines of `block` are consecutive lines of `source`, at any common indentation."""
    wanted, lines = normalised(block).split("\n"), source.split("\n")
    for start in range(len(lines) - len(wanted) + 1):
        if normalised("\n".join(lines[start:start + len(wanted)])) == "\n".join(wanted):
            return True
    return False


def main(root):
    programs = [*(root / "examples").rglob("*.cc"), *(root / "tests/integration/own_program").rglob("*.cc")]
    sources = [path.read_text() for path in sorted(programs)]
    count, problems = 0, []
    for document in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for block in BLOCK.findall(document.read_text()):
            count += 1
            if not any(stands_in(block, source) for source in sources):
                problems.append(f"{document.relative_to(root)}: no example contains the block that begins with "
                                f"'{block.strip().splitlines()[0]}'")
    print("\n".join(problems) if problems else f"snippets: {count} blocks, each from an example that is run")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
