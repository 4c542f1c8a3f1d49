"""Shared by the tests of elastic training: a small run, its workers, its result."""
import os
import pathlib
import random
import signal
import time

from support import build_folder, expect, fail

MODEL = ("--layers 2 --heads 2 --width 32 --block 16 --batch 12 --elastic-micro-batches 6 "
         "--dropout 0.1 --warmup 10 --log-every 5 "
         "--eval-every 200 --eval-batches 1").split()


def train_program():
    return str(build_folder() / "bin/lockstep-train")


def training(folder, name, steps, *more, every=300):
    """Returns the arguments of a training. `every` is the number of steps between checkpoints."""
    where = ["--data", str(folder / "text.txt"), "--out", str(folder / name), "--save-every", str(every)]
    return ["gpt", *where, "--steps", str(steps), "--elastic", *MODEL, *more]


def model_of(folder, name):
    return (folder / name / "model.safetensors").read_bytes()


def expect_the_same(folder, name, what, output):
    expect(model_of(folder, name) == model_of(folder, "calm"), f"another model: {what}", output[-20000:])


def has_rank(folder, surroundings):
    """Returns True if a process of a run has a rank; a hot spare gets one when it joins a round."""
    if b"\0LOCKSTEP_WORKER=" in surroundings:
        return True
    threads = [(thread / "comm").read_text() for thread in (folder / "task").iterdir()]
    return "round watch\n" in threads


def workers_of(process, hot_spare=False):
    """Returns the processes that a launcher has started and that have a rank, or the hot spares."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            if int(stat[stat.rindex(") ") + 2:].split()[1]) != process.pid:
                continue
            surroundings = (folder / "environ").read_bytes()
            if b"\0LOCKSTEP_AGENT=" not in surroundings:
                continue
            waits = (folder / "comm").read_text() == "hot-spare\n"
            if waits if hot_spare else has_rank(folder, surroundings) and not waits:
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue  # the process has just ended
    return found


def kill_one(process, number=signal.SIGKILL, hot_spare=False):
    workers = workers_of(process, hot_spare)
    if not workers:
        return False
    try:
        os.kill(random.choice(workers), number)
    except ProcessLookupError:
        return False
    return True


def wait_for(path, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            fail(f"{path} does not appear")
        time.sleep(0.02)
