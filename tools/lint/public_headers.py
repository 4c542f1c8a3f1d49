#!/usr/bin/env python3
"""Checks the public headers: users include each of them, and each exports its declarations.

A header below include/ must be reachable: <lockstep/lockstep.h> includes it, directly or not, or a document or the
README names it as an entry. It must not include private headers or headers of libraries that only our sources use, so
that a program needs nothing but LibTorch. Its declarations must be between the two pragmas that make them visible
outside liblockstep.so.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include ([<"])([^">]+)[">]', re.MULTILINE)
NOT_FOR_USERS = re.compile(r"^(fmt|spdlog|nlohmann|toml\+\+|hwy|gtest)/|^(sodium|pcre2|zlib|mpi|CLI)")
PUSH, POP = "#pragma GCC visibility push(default)", "#pragma GCC visibility pop"
FIRST = "lockstep/lockstep.h"


def reached_from(names, includes):
    reached, left = set(), list(names)
    while left:
        name = left.pop()
        if name in includes and name not in reached:
            reached.add(name)
            left += [included for quote, included in includes[name] if quote == "<"]
    return reached


def problems(root):
    headers = {path.relative_to(root / "include").as_posix(): path.read_text()
               for path in sorted((root / "include").rglob("*.h"))}
    includes = {name: INCLUDE.findall(text) for name, text in headers.items()}
    documents = [root / "README.md", *sorted((root / "docs").glob("*.md")),
                 *sorted((root / "docs/reference").glob("*.md"))]
    named = {match for document in documents if document.exists()
             for match in re.findall(r"lockstep/[a-z0-9_/]+\.h", document.read_text())}
    reached = reached_from([FIRST, *named], includes)
    for name, text in headers.items():
        if name not in reached:
            yield f"include/{name}: not reached from <{FIRST}> and not named in a document: it belongs in src/"
        for quote, included in includes[name]:
            if quote == '"':
                yield f'include/{name}: includes the private "{included}"'
            elif NOT_FOR_USERS.match(included):
                yield f"include/{name}: includes <{included}>, which a program of a user need not have"
        if name == FIRST:
            continue
        lines = text.rstrip("\n").split("\n")
        pushes, pops = ([i for i, line in enumerate(lines) if line == wanted] for wanted in (PUSH, POP))
        last_include = max((i for i, line in enumerate(lines) if INCLUDE.match(line)), default=0)
        if len(pushes) != 1 or pops != [len(lines) - 1] or pushes[0] < last_include:
            yield f"include/{name}: expected '{PUSH}' behind its includes and '{POP}' at its end"


def main(root):
    found = list(problems(root))
    print("\n".join(found) if found else "public_headers: all reached, all exported")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
