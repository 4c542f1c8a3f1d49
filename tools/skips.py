#!/usr/bin/env python3
"""Lists the test cases that skipped themselves, with their reasons, from GoogleTest's XML in the folders given."""
import collections
import pathlib
import sys
import xml.etree.ElementTree as xml


def reason_of(skip):
    """The message without the place in the source that GoogleTest puts before it."""
    lines = [line for line in skip.get("message", "").splitlines() if line.strip()]
    return " ".join(lines[1:] if len(lines) > 1 else lines) or "no reason given"


def main(folders):
    cases = collections.defaultdict(set)
    for path in (path for folder in folders for path in pathlib.Path(folder).glob("*.xml")):
        try:
            tree = xml.parse(path)
        except xml.ParseError:   # a program that was killed while it wrote
            continue
        for case in tree.iter("testcase"):
            skip = case.find("skipped")
            if skip is not None:
                cases[reason_of(skip)].add(f"{case.get('classname')}.{case.get('name')}")
    for reason, names in sorted(cases.items(), key=lambda item: -len(item[1])):
        example = min(names)
        print(f"skipped: {len(names)} case{'s' if len(names) > 1 else ''} ({example}{', ...' if len(names) > 1 else ''}): {reason}")


main(sys.argv[1:])
