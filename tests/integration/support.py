"""Shared by the integration tests: programs of the build, commands with a time limit, reasons to skip.

Each test is a script with the build folder as its argument. It prints its results and exits with 0; with 1 and the
error; or with 77 and the reason if this host lacks a requirement.
"""
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

SKIPPED = 77


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def build_folder():
    return pathlib.Path(sys.argv[1]).resolve()


def lockstep():
    return str(build_folder() / "bin/lockstep")


def example(name):
    """Returns the path of a built program of examples/; skips if the build has none."""
    program = build_folder() / "examples" / name
    if not program.exists():
        skip(f"the build has no example {name}")
    return str(program)


def python():
    """Returns the Python with torch: LOCKSTEP_PYTHON (empty: none), else the source tree's; None if there is none."""
    root = pathlib.Path(__file__).resolve().parents[2]
    named = os.environ.get("LOCKSTEP_PYTHON")
    if named is None and any((root / ".venv/lib").glob("*/site-packages/torch/version.py")):
        named = str(root / ".venv/bin/python")
    return named if named and os.access(named, os.X_OK) else None


def environment(**more):
    """Returns this process's environment without variables of a launcher that runs the test."""
    launcher = re.compile("RANK$|WORLD_SIZE$|LOCKSTEP_|MASTER_|TORCHELASTIC_|OMPI_|PMIX?_|MPI_LOCAL|SLURM_")
    mine = "LOCKSTEP_COMMITS"  # set by a test
    kept = {name: value for name, value in os.environ.items() if name == mine or not launcher.search(name)}
    return kept | {"OMP_NUM_THREADS": "1", "LOCKSTEP_ARENA": "64MiB"} | more


def why_no_world(launcher, world, env=None):
    """Returns why `launcher` cannot start a world of two ranks, by the program mpi_world of its MPI; empty if it can.

    If a package's mpirun and library disagree about how ranks are numbered, they start worlds of one rank. That is a
    defect of the package, and nothing that needs several ranks can be tested with it.
    """
    done = subprocess.run([*launcher, "-n", "2", world], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60)
    said = [line for line in done.stdout.splitlines() if line.startswith("world of")]
    if said == ["world of 1"] * 2:
        name = os.path.basename(launcher[0])
        return f"{name} -n 2 starts two worlds of one rank: its library does not understand it"
    if done.returncode != 0 or said != ["world of 2"]:
        fail(f"{launcher[0]} -n 2 {world}: exit code {done.returncode}", done.stdout + done.stderr)
    return ""


class Process:
    """A command in its own session, with all its output in one text; ended with the test."""

    started = []

    def __init__(self, words, **options):
        options.setdefault("env", environment())
        self.words = words
        self.began = time.monotonic()
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, start_new_session=True, **options)
        # Read at once: a launcher whose output is not read slows its ranks, and finally drops lines.
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()
        Process.started.append(self)

    def finish(self, seconds=60):
        """Waits for its end. Returns its exit code, its output, and its duration."""
        self.reader.join(seconds)
        if self.reader.is_alive():
            self.kill()
            self.reader.join(10)
            fail(f"still running after {seconds} s: {' '.join(self.words)}", "".join(self.lines))
        self.process.wait()
        return self.process.returncode, "".join(self.lines), time.monotonic() - self.began

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)


def adopt_orphans():
    """Adopts orphans: a process that leaves its parents (a daemon) becomes a child of this script, and ends with it.
    """
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def children():
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name_end = (text := stat.read_text()).rindex(") ")
        except OSError:
            continue  # the process has just ended
        if int(text[name_end + 2:].split()[1]) == os.getpid():
            yield int(stat.parent.name)


def end_all():
    for one in Process.started:
        one.kill()
        one.process.wait()
    while orphans := list(children()):
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run(words, seconds=60, **options):
    return Process(words, **options).finish(seconds)


def fail(what, output=""):
    print(f"FAILED: {what}\n{output}", flush=True)
    end_all()
    sys.exit(1)


def expect(condition, what, output=""):
    if not condition:
        fail(what, output)


def expect_words(output, *words):
    for word in words:
        expect(re.search(word, output), f"no '{word}' in", output)


def shown(what, seconds):
    print(f"{what}: {seconds:.1f} s", flush=True)
