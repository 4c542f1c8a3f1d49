#!/usr/bin/env python3
"""A user's own program (own_program/own_program.cc): killed on three ranks, it resumes on two and on three.

Its losses equal those of one process, up to rounding of bfloat16. On the same number of ranks, they equal an
undisturbed run to the last digit.
"""
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

from support import Process, build_folder, end_all, expect, fail, lockstep, run, shown

STEPS = 60
MOST_LINES = 60
LARGEST_DIFFERENCE = 0.02


def program():
    return str(build_folder() / "tests/programs/own_program")


def losses_in(output):
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)}


def train(what, ranks, folder):
    """Runs the program to its end; returns the losses of the steps that it made."""
    words = [program(), str(folder), str(STEPS)]
    code, output, seconds = run([lockstep(), "run", "-n", str(ranks), *words] if ranks > 1 else words)
    expect(code == 0, f"{what}: exit code {code}", output)
    shown(what, seconds)
    return losses_in(output)


def train_and_kill(ranks, folder, at_step):
    """Kills every process of the run when it has made a step; returns the losses until then."""
    running = Process([lockstep(), "run", "-n", str(ranks), program(), str(folder), str(STEPS)])
    while running.reader.is_alive() and not any(f"step {at_step} " in line for line in running.lines):
        time.sleep(0.002)
    running.kill(signal.SIGKILL)
    _, output, _ = running.finish()
    losses = losses_in(output)
    expect(at_step <= max(losses, default=0) < STEPS, f"killed at step {at_step}, found", output)
    return losses


def expect_close(what, found, expected):
    for step, loss in found.items():
        expect(abs(loss - expected[step]) < LARGEST_DIFFERENCE, f"{what}: step {step}: {loss}, not {expected[step]}")


def go_on(ranks, folder, alone):
    newest = max(int(each.name.removeprefix("step-")) for each in folder.glob("step-*"))
    found = train(f"going on from step {newest} on {ranks} ranks", ranks, folder)
    expect(min(found) == newest + 1 and max(found) == STEPS, f"{ranks} ranks made steps {sorted(found)}")
    expect_close(f"{ranks} ranks", found, alone)
    left = [each.name for each in folder.iterdir() if each.name.startswith(".")]
    expect(not left, f"left in the folder: {left}")
    return found


def main():
    source = pathlib.Path(__file__).parent / "own_program/own_program.cc"
    lines = len(source.read_text().splitlines())
    expect(lines <= MOST_LINES, f"{source.name} has {lines} lines")
    if not os.access(program(), os.X_OK):
        fail("the build has no own_program")
    with tempfile.TemporaryDirectory(prefix="lockstep-own-") as name:
        folder = pathlib.Path(name)
        alone = train("one process", 1, folder / "alone")
        expect(min(alone[step] for step in range(STEPS - 9, STEPS + 1)) < alone[1] / 2, f"it does not learn: {alone}")
        straight = train("three ranks", 3, folder / "straight")
        for ranks in (2, 3):
            here = folder / f"killed{ranks}"
            killed = train_and_kill(3, here, at_step=23)
            expect(all(straight[step] == loss for step, loss in killed.items()), f"{killed}, straight {straight}")
            found = go_on(ranks, here, alone)
            if ranks == 3:
                expect(all(straight[step] == loss for step, loss in found.items()), f"{found}, straight {straight}")


if __name__ == "__main__":
    try:
        main()
    finally:
        end_all()
    sys.exit(0)
