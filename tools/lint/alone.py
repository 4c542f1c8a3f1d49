#!/usr/bin/env python3
"""Compiles every source and every public header by itself, with warnings as errors.

    alone.py BUILD

BUILD must be configured with the preset `debug`; it has compile_commands.json and its precompiled headers. No code is
generated: all diagnostics come before code generation, and this takes less than half of the time.
"""
import pathlib
import subprocess
import sys

import units


def without_output(command):
    """Returns the command without the launcher (ccache) and without output files."""
    words = command[1:] if pathlib.Path(command[0]).name == "ccache" else list(command)
    words.remove("-c")
    place = words.index("-o")
    return [*words[:place], *words[place + 2:], "-fsyntax-only"]


def main(build):
    build = pathlib.Path(build).resolve()
    commands = {path: without_output(command) for path, command in units.commands_of(build).items()
                if not path.name.startswith("cmake_pch")}
    compiler = next(iter(commands.values()))[0]
    settings = subprocess.check_output([compiler, "--version"])

    def check(_, command):
        done = subprocess.run(command, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    return units.look_at("alone", build, commands, settings, check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
