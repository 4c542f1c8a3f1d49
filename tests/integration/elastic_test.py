#!/usr/bin/env python3
"""Elastic training under `lockstep run`: regardless of kills, model.safetensors has the same bytes.

Kills LOCKSTEP_ELASTIC_KILLS (6) random ranks, LOCKSTEP_ELASTIC_PAUSE (0.7) seconds apart; `./dev soak` sets 1,000
kills 2 s apart, and the run is long enough for all kills. Without the soak, the wall clock is also set an hour
forwards and backwards, and hot spares are killed too.
"""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

from elastic_support import kill_one, model_of, train_program, training, wait_for
from support import Process, end_all, environment, expect, expect_words, lockstep, run, shown

KILLS = int(os.environ.get("LOCKSTEP_ELASTIC_KILLS", "6"))
IS_SOAK = "LOCKSTEP_ELASTIC_KILLS" in os.environ
PAUSE = float(os.environ.get("LOCKSTEP_ELASTIC_PAUSE", "0.7"))


def goodput_in(output):
    found = re.findall(r"goodput=([0-9.]+)", output)
    expect(found, "no goodput= in", output)
    return float(found[-1])


def time_of_day():
    """Parses a time in the format of the log."""
    now = time.time()
    return time.localtime(now).tm_hour * 3600 + time.localtime(now).tm_min * 60 + now % 60


def after(time_at, kill):
    """Returns the seconds between two times of day; the second one may be on the next day."""
    return (time_at - kill) % 86400


def line_times(output, words):
    return [int(hour) * 3600 + int(minute) * 60 + float(second) for hour, minute, second in
            re.findall(r"(\d\d):(\d\d):(\d\d\.\d+) [^\n]*" + words, output)]


def first_after(times, kill, most=60):
    later = [after(at, kill) for at in times if after(at, kill) < most]
    return min(later, default=None)


def show_phases(output, kills, knows_the_time):
    """Prints the time from a kill until a step of the next round is committed, and its parts."""
    phases = {}
    output = "\n".join(line for line in output.splitlines() if not line.startswith("lockstep run:   |"))  # once more
    for words in re.findall(r"its first step is committed: ([a-z0-9= ]+)", output):
        for name, took in re.findall(r"(\w+)=(\d+)ms", words):
            phases.setdefault(name, []).append(int(took) / 1000)
    expect(phases, "no line says when the first step of a round is committed", output[-5000:])
    if knows_the_time:
        for name, words in (("until a rank knows", "is over for this worker"),
                            ("until a step is committed", "its first step is committed")):
            times = line_times(output, words)
            phases[name] = [took for kill in kills if (took := first_after(times, kill)) is not None]
    for name, all_of_it in phases.items():
        ordered = sorted(all_of_it)
        if ordered:
            median, p95 = ordered[len(ordered) // 2], ordered[len(ordered) * 95 // 100]
            print(f"  {name}: median {median:.3f} s, p95 {p95:.3f} s, {len(ordered)} times", flush=True)


def undisturbed(folder, steps):
    code, output, seconds = run([lockstep(), "train", *training(folder, "calm", steps, "--ranks", "3")], seconds=3600)
    expect(code == 0, f"lockstep train --elastic ended with {code}", output)
    expect_words(output, "done: .*goodput=")
    shown(f"{steps} steps of 3 ranks that nobody disturbs", seconds)
    return seconds


def set_clock(folder):
    """Returns variables with which programs see a changed wall clock; nothing if the library cannot be built or
    loaded.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    program = pathlib.Path(train_program()).read_bytes()
    if compiler is None or b"__asan_init" in program or b"__tsan_init" in program:
        shown("the clock of the day is not set: no C compiler, or a sanitizer", 0)
        return {}
    library = folder / "set_clock.so"
    source = pathlib.Path(__file__).with_name("set_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}


def killed(folder, steps):
    """Kills random ranks of `lockstep run`; returns how many."""
    began = time.monotonic()
    surroundings = {} if IS_SOAK else set_clock(folder)
    run_of = Process([lockstep(), "run", "-n", "3", "--max-restarts", "100000", train_program(),
                      *training(folder, "killed", steps)], env=environment(**surroundings))
    kills, times = 0, []
    while kills < KILLS and run_of.process.poll() is None:
        time.sleep(PAUSE)
        at = time_of_day()
        if kill_one(run_of.process):
            kills += 1
            times.append(at)
        if not IS_SOAK and kills % 3 == 0:
            kill_one(run_of.process, hot_spare=True)
    code, output, _ = run_of.finish(3600)
    expect(code == 0, f"a run with {kills} kills ended with {code}", output[-20000:])
    is_same = model_of(folder, "killed") == model_of(folder, "calm")
    expect(is_same, f"another model after {kills} kills", output[-20000:])
    least = KILLS if IS_SOAK else min(KILLS, 2)
    expect(kills >= least, f"only {kills} of {KILLS} kills before the run was done", output[-5000:])
    expect(0 < goodput_in(output) <= 1, "a goodput that is no share", output[-5000:])
    taken = "with the clock of the day set" if surroundings else f"one each {PAUSE} s"
    lost = re.findall(r"lost_steps=(\d+)", output)
    rounds = len(re.findall("round [0-9]+ begins", output))
    expect(lost and int(lost[-1]) <= 2 * rounds, f"lost steps of {rounds} rounds: {lost}", output[-5000:])
    shown(f"{kills} kills, {taken}: the same bytes, goodput {goodput_in(output):.3f}, {lost[-1]} lost steps",
          time.monotonic() - began)
    show_phases(output, times, not surroundings)


def stopped(folder, steps):
    run_of = Process([lockstep(), "run", "-n", "3", "--max-restarts", "10", "--hung-after", "2s", train_program(),
                      *training(folder, "stopped", steps)])
    time.sleep(2.5)
    was_stopped = kill_one(run_of.process, signal.SIGSTOP)
    code, output, seconds = run_of.finish(170)
    expect(code == 0, f"a run with a stopped rank ended with {code}", output)
    expect(was_stopped, "the run was done before a rank was stopped", output)
    expect(model_of(folder, "stopped") == model_of(folder, "calm"), "another model after a SIGSTOP", output)
    shown("a stopped rank: the same bytes", seconds)


def agent_killed(folder, steps):
    words = [lockstep(), "train", *training(folder, "orphaned", steps, "--ranks", "3")]
    run_of = Process(words)
    wait_for(folder / "orphaned" / "step-00000300")
    os.kill(run_of.process.pid, signal.SIGKILL)
    run_of.finish(60)
    code, output, seconds = run([*words, "--resume"], seconds=170)
    expect(code == 0, f"--resume after the agent was killed ended with {code}", output)
    expect_words(output, "resumed at step 300|resumed at step 600|resumed at step 900")
    expect(model_of(folder, "orphaned") == model_of(folder, "calm"), "another model after --resume", output)
    shown("the agent killed, then --resume: the same bytes", seconds)


def no_room_in_memory(folder, steps):
    """Commits go to a folder that is not writable: the run reports it and goes on."""
    nowhere = folder / "nowhere"
    nowhere.write_text("a file")
    code, output, _ = run([lockstep(), "train", *training(folder, "memoryless", steps, "--ranks", "2")], seconds=170,
                          env=environment(LOCKSTEP_COMMITS=str(nowhere)))
    expect(code == 0, f"a run without commits ended with {code}", output)
    expect_words(output, "no state is kept in memory")
    expect(model_of(folder, "memoryless") == model_of(folder, "calm"), "another model without commits", output)


def refused(folder):
    """An error that every restart would meet again is reported, without another round and without flight records."""
    for name, wrong, expected in (("words", ["--no-such-option"], "unknown option '--no-such-option'"),
                                  ("axes", ["--mesh", "pp=2"], "--elastic works with the axes dp, fsdp and tp"),
                                  ("heads", ["--mesh", "tp=4"], "expected a number of heads divisible by tp, 4")):
        code, output, seconds = run([lockstep(), "run", "-n", "4", "--max-restarts", "3", train_program(),
                                     *training(folder, name, 10, *wrong)], seconds=60)
        expect(code in (1, 2), f"{wrong}: exit code {code}", output)
        expect_words(output, expected)
        expect(not re.search("flight|report hang|round 1 begins", output), f"more than a refusal of {wrong}", output)
        shown(f"refused: {' '.join(wrong)}", seconds)


def main():
    random.seed(17)
    folder = pathlib.Path(tempfile.mkdtemp())
    os.environ["LOCKSTEP_COMMITS"] = memory = tempfile.mkdtemp(dir="/dev/shm")  # distinct from other tests
    (folder / "text.txt").write_text("abacus banana cab " * 300)
    steps = 1000
    try:
        if not IS_SOAK:
            refused(folder)
        seconds = undisturbed(folder, steps)
        wanted = KILLS * PAUSE
        if seconds < wanted:  # long enough for all kills, even with a slow start
            shutil.rmtree(folder / "calm")
            seconds_of_a_step = (undisturbed(folder, 5 * steps) - seconds) / (4 * steps)
            steps = int(wanted / seconds_of_a_step * 1.3)
            shutil.rmtree(folder / "calm")
            undisturbed(folder, steps)
        killed(folder, steps)
        if not IS_SOAK:
            stopped(folder, steps)
            agent_killed(folder, steps)
            no_room_in_memory(folder, steps)
        left = [path for path in pathlib.Path(memory).glob(f"lockstep-commits-{os.getuid()}/*")]
        expect(not left, f"left in memory: {left}")
    finally:
        end_all()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


main()
