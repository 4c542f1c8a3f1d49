#!/usr/bin/env python3
"""Runs ctest and prints the numbers of passed, failed and skipped tests, with the reasons of skips.

    run_tests.py test PRESET[=REGEX]...            the entries of these presets once; 1 if a test failed
    run_tests.py soak MINUTES PRESET[=REGEX]...    repeats until the time is over; 1 if one failed even once

It counts the cases of GoogleTest programs (from the XML that each ctest entry leaves in build/PRESET/results/) and
the ctest entries without cases. An entry that fails runs once more, alone, which tells a race from a broken test; a
second try excuses nothing, except the cases that tests/about_time.txt marks. A soak has no second tries.
"""
import collections
import dataclasses
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[1]
OF_CTEST = re.compile(r"\s*(Start\s+\d+: |\d+/\d+ Test\s+#)|\d+% tests passed")   # not the output of a program


@dataclasses.dataclass
class Case:
    """A case of a program. A case without a name is an entry that has no cases or left no results of them."""
    name: str
    status: str   # "passed", "failed" or "skipped"
    reason: str = ""


@dataclasses.dataclass
class Entry:
    """One ctest entry of one preset."""
    preset: str
    name: str
    failed: bool
    cases: list

    def called(self, case):
        return f"{self.preset}: {self.name}" + (f": {case.name}" if case.name else "")


def reason_of_case(skip):
    """Returns the message without the source location that GoogleTest puts before it."""
    lines = [line for line in skip.get("message", "").splitlines() if line.strip()]
    return " ".join(lines[1:] if len(lines) > 1 else lines) or "no reason given"


def cases_in(file):
    """Returns the cases of a GoogleTest XML file; none if the program ended before it wrote the file."""
    try:
        tree = xml.parse(file)
    except (FileNotFoundError, xml.ParseError):
        return []
    cases = []
    for case in tree.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skip = case.find("skipped")
        if case.get("status") == "notrun":
            continue
        if case.find("failure") is not None:
            cases.append(Case(name, "failed"))
        elif skip is not None:
            cases.append(Case(name, "skipped", reason_of_case(skip)))
        else:
            cases.append(Case(name, "passed"))
    return cases


def reason_of_entry(test):
    """Returns the last line that an entry printed before it skipped itself."""
    lines = [line for line in (test.findtext("system-out") or "").splitlines() if line.strip()]
    return lines[-1].removeprefix("skipped: ") if lines else "no reason given"


def entry_of(preset, test, file):
    """Makes an Entry. `test` is the entry's element in ctest's JUnit file, `file` the results that it must leave, if
    any.
    """
    name, skip = test.get("name"), test.find("skipped")
    if test.get("status") == "notrun" and skip is not None and "SKIP_RETURN_CODE" in skip.get("message", ""):
        return Entry(preset, name, False, [Case("", "skipped", reason_of_entry(test))])
    cases = cases_in(file) if file else []
    if test.get("status") != "run":
        if not any(case.status == "failed" for case in cases):
            cases.append(Case("", "failed"))
        return Entry(preset, name, True, cases)
    if file and not cases:
        return Entry(preset, name, True, [Case("", "failed", "it ran no case")])
    return Entry(preset, name, False, cases or [Case("", "passed")])


def results_of(folder):
    """Returns the XML file of each ctest entry that writes one."""
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=folder, capture_output=True, text=True, check=True)
    files = {}
    for test in json.loads(shown.stdout)["tests"]:
        properties = {one["name"]: one["value"] for one in test.get("properties", [])}
        settings = properties.get("ENVIRONMENT", [])
        names = collections.Counter(setting.partition("=")[0] for setting in settings)
        if twice := [name for name, count in names.items() if count > 1]:   # the last one would win
            sys.exit(f"run_tests: {test['name']} sets {', '.join(twice)} twice")
        for setting in settings:
            if setting.startswith("GTEST_OUTPUT=xml:"):
                files[test["name"]] = pathlib.Path(setting.removeprefix("GTEST_OUTPUT=xml:"))
    return files


def read_entries(preset, junit, files):
    tests = list(xml.parse(junit).iter("testcase"))
    return [entry_of(preset, test, files.get(test.get("name"))) for test in tests if test.get("status") != "disabled"]


def lines_of_failures(text, most=120):
    """Returns the output of failed cases of a GoogleTest program, or the end of the output of another program."""
    shown, case = [], None
    for line in text.splitlines():
        if line.startswith("[ RUN      ]"):
            shown += case or []    # the previous case has no end line
            case = [line]
        elif case and line.startswith(("[       OK ]", "[  SKIPPED ]")):
            case = None
        elif case:
            case.append(line)
            if line.startswith("[  FAILED  ]"):
                shown, case = shown + case, None
    shown += case or []
    return (shown or text.splitlines())[-most:]


def print_failures(preset, junit):
    for test in xml.parse(junit).iter("testcase"):
        if test.get("status") == "fail":
            print(f"--- {preset}: {test.get('name')} failed:",
                  *lines_of_failures(test.findtext("system-out") or ""), sep="\n", flush=True)


def run_ctest(preset, words, log_name="ctest.log", quiet=False):
    """Returns the entries that ctest ran. A log in build/PRESET/ has ctest's own text and the output of failing
    entries.
    """
    folder = ROOT / "build" / preset
    junit = folder / "ctest.xml"
    junit.unlink(missing_ok=True)
    files = results_of(folder)
    command = ["ctest", "--output-on-failure", "--output-junit", str(junit), *words]
    with open(folder / log_name, "w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace")
        for line in process.stdout:
            log.write(line)
            if not quiet and OF_CTEST.match(line):
                print(line, end="", flush=True)
    process.wait()
    if junit.exists() and not quiet:
        print_failures(preset, junit)
    entries = read_entries(preset, junit, files) if junit.exists() else []
    if not entries:
        sys.exit(f"run_tests: ctest of {preset} ran no test; see {folder}/{log_name}")
    return entries


def first_try(preset, only="", quiet=False):
    """Runs one more test at a time than there are cores, because some tests wait most of the time."""
    for file in (ROOT / "build" / preset / "results").glob("*.xml"):
        file.unlink()
    words = ["--parallel", str((os.cpu_count() or 1) + 1), *(["-R", only] if only else [])]
    return run_ctest(preset, words, quiet=quiet)


def second_try(preset, failed):
    """Runs these entries alone, by their names: `ctest --rerun-failed` runs every entry if all that failed are those that
    ctest accepts and entry_of() does not.
    """
    names = "|".join(re.escape(entry.name) for entry in failed)
    return run_ctest(preset, ["-R", f"^({names})$"], "ctest-again.log")


def read_marks(file):
    """Returns the patterns of cases that are about time, each with its reason."""
    marks = {}
    for line in file.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, reason = line.split(None, 1)
            marks[pattern] = reason
    return marks


class Report:
    """Counts entries and their second tries, and prints the results."""

    def __init__(self, marks):
        self.marks = marks
        self.counts = collections.Counter()
        self.skipped = collections.defaultdict(list)    # reason -> skipped cases
        self.lines = []

    def add(self, entry, second=None):
        """Adds an entry. `second` is the same entry at its second try, if it had one."""
        passed_then = second is not None and not second.failed
        excused = passed_then and all(self.mark_of(case) for case in entry.cases if case.status == "failed")
        for case in entry.cases:
            self.add_case(entry, case, passed_then, excused)

    def add_case(self, entry, case, passed_then, excused):
        if case.status == "skipped":
            self.counts["skipped cases" if case.name else "skipped entries"] += 1
            self.skipped[case.reason].append(entry.called(case))
        elif case.status == "passed":
            self.counts["passed"] += 1
        elif excused:
            self.counts["passed"] += 1
            self.counts["about time"] += 1
            self.lines.append(f"passed only at the second try: {entry.called(case)} "
                              f"(about time: {self.mark_of(case)})")
        else:
            self.counts["failed"] += 1
            again = "; it passed at a second try, which excuses no test that is not about time" if passed_then else ""
            self.lines.append(f"failed: {entry.called(case)}{f' ({case.reason})' if case.reason else ''}{again}")

    def mark_of(self, case):
        return next((reason for pattern, reason in self.marks.items() if fnmatch.fnmatchcase(case.name, pattern)), "")

    def print(self):
        for reason, names in sorted(self.skipped.items(), key=lambda item: (-len(item[1]), item[0])):
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            print(f"skipped: {min(names)}{others}: {reason}")
        for line in self.lines:
            print(line)
        counts = self.counts
        print(f"{counts['passed']} passed, {counts['failed']} failed, "
              f"{counts['skipped cases'] + counts['skipped entries']} skipped ({counts['skipped cases']} cases and "
              f"{counts['skipped entries']} entries, for the {len(self.skipped)} reasons above), "
              f"{counts['about time']} about time that passed only at the second try", flush=True)
        return 1 if counts["failed"] else 0


def test(wanted):
    report = Report(read_marks(ROOT / "tests/about_time.txt"))
    for preset, only in wanted:
        entries = first_try(preset, only)
        failed = [entry for entry in entries if entry.failed]
        again = {entry.name: entry for entry in second_try(preset, failed)} if failed else {}
        for entry in entries:
            report.add(entry, again.get(entry.name))
    return report.print()


def soak(minutes, wanted):
    end = time.monotonic() + minutes * 60
    counts, failures, rounds = collections.Counter(), collections.Counter(), 0
    while time.monotonic() < end:
        for preset, only in wanted:
            entries = first_try(preset, only, quiet=True)
            counts.update(case.status for entry in entries for case in entry.cases)
            found = [entry.called(case) for entry in entries for case in entry.cases if case.status == "failed"]
            failures.update(found)
            if found:
                log = ROOT / "build" / preset / "ctest.log"
                log.rename(log.with_name(f"soak-round-{rounds + 1}.log"))
        rounds += 1
        print(f"round {rounds}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped",
              flush=True)
    for name, times in failures.most_common():
        print(f"failed: {name}, {times} times in {rounds} rounds")
    print(f"{sum(failures.values())} failures; logs of their rounds: build/*/soak-round-*.log" if failures
          else "no failure")
    return 1 if failures else 0


def main(words):
    rest = words[2:] if words[:1] == ["soak"] else words[1:]
    wanted = [(preset, only) for preset, _, only in (word.partition("=") for word in rest)]
    if wanted and words[0] == "soak":
        return soak(float(words[1]), wanted)
    if wanted and words[0] == "test":
        return test(wanted)
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
