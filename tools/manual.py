#!/usr/bin/env python3
"""Writes the options of `lockstep run` and `lockstep train`, as --help lists them, into the manual page src/apps/lockstep.1.

    tools/manual.py build/release            writes them
    tools/manual.py build/release --check    exits with 1 if the manual lists other options
"""
import pathlib
import re
import subprocess
import sys

MANUAL = pathlib.Path(__file__).resolve().parents[1] / "src/apps/lockstep.1"
COMMANDS = ("run", "train")
TEXT_COLUMN = 28   # of the text of an option in --help, in src/sys/program.cc
OPTION = re.compile(r"  (?:-(?P<letter>\w), )?--(?P<name>[a-z0-9-]+)(?: (?P<value>[A-Z][A-Z0-9:]*))?(?: \[(?P<word>\w+)\])?")


def escaped(text):
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text.startswith((".", "'")) else text


def entry(option, text):
    """An option in roff."""
    words = rf"\fB{escaped('-' + option['letter'])}\fR, " if option["letter"] else ""
    words += rf"\fB{escaped('--' + option['name'])}\fR"
    if option["value"]:
        words += rf" \fI{option['value']}\fR"
    if option["word"]:
        words += f" [{option['word']}]"
    return [".TP", words, escaped(text)]


def options_of(text):
    """The options in the output of --help, as lines of roff: a .SS for each heading but the first."""
    lines, option, words = [], None, ""
    listed = text[text.index("\nOptions:\n") + len("\nOptions:\n"):].splitlines()
    for line in listed + [""]:
        is_continued = line.startswith(" " * TEXT_COLUMN)
        if option and not is_continued:
            lines += entry(option, words)
            option = None
        if is_continued:
            words += " " + line.strip()
        elif match := OPTION.match(line):
            option, words = match, line[match.end():].strip()
        elif line.endswith(":"):
            lines.append(".SS " + line[:-1])
        elif line:
            sys.exit(f"manual: cannot read this line of --help: {line}")
    return lines


def section(build, command):
    done = subprocess.run([build / "bin/lockstep", command, "--help"], check=True, capture_output=True, text=True)
    return [f".SH OPTIONS OF LOCKSTEP {command.upper()}"] + options_of(done.stdout)


def with_options(manual, build):
    """The manual's text with the options of this build, in front of the section AXES."""
    kept = re.sub(r"(?ms)^\.SH OPTIONS OF .*?(?=^\.SH (?!OPTIONS OF ))", "", manual)
    lines = [line for command in COMMANDS for line in section(build, command)]
    return kept.replace(".SH AXES\n", "\n".join(lines) + "\n.SH AXES\n")


def main(build, check):
    before = MANUAL.read_text()
    after = with_options(before, pathlib.Path(build))
    if not check:
        MANUAL.write_text(after)
    elif before != after:
        different = sorted(set(after.splitlines()) ^ set(before.splitlines()))
        print(f"src/apps/lockstep.1 lists other options than --help (tools/manual.py {build} writes them):")
        print("\n".join(different[:10]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--check" in sys.argv[2:]))
