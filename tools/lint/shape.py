#!/usr/bin/env python3
"""Checks the shape of the sources: line width, file length, the header comment, trailing blanks."""
import pathlib
import sys

WIDTH = {".h": 100, ".cc": 100, ".py": 118}
LINES = 500
TREES = ("include", "src", "tests", "examples", "bench")


def problems_of(path, root):
    name = str(path.relative_to(root))
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if len(line) > WIDTH[path.suffix]:
            yield f"{name}:{number}: {len(line)} columns, at most {WIDTH[path.suffix]}"
        if line.rstrip() != line or "\t" in line:
            yield f"{name}:{number}: a tab or a blank at the end"
    if len(lines) > LINES:
        yield f"{name}: {len(lines)} lines, at most {LINES}"
    if path.suffix == ".h" and not lines[0].startswith("//"):
        yield f"{name}: a header begins with what it is for"
    compiled_again = "HWY_NAMESPACE" in path.read_text()  # Highway includes it once per instruction set
    if path.suffix == ".h" and "#pragma once" not in lines and not compiled_again:
        yield f"{name}: no #pragma once"


def main(root):
    files = [path for tree in TREES for path in sorted((root / tree).rglob("*")) if path.suffix in (".h", ".cc", ".py")]
    problems = [problem for path in files for problem in problems_of(path, root)]
    print("\n".join(problems) if problems else f"shape: {len(files)} files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
