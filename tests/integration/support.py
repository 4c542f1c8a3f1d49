"""What the integration tests share: programs of the build, commands with a limit, reasons to skip.

Each test is a script with the build folder as its argument. It prints what it has shown, ends with 0, or with 1 and
what went wrong, or with 77 and the reason where this machine lacks what it needs.
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
    """A program of examples/ as it was built; skips where the build has none."""
    program = build_folder() / "examples" / name
    if not program.exists():
        skip(f"the build has no example {name}")
    return str(program)


def environment(**more):
    """This process's environment without what a launcher around the test may have put there."""
    launcher = re.compile("RANK$|WORLD_SIZE$|LOCKSTEP_|MASTER_|TORCHELASTIC_|OMPI_|PMIX?_|MPI_LOCAL|SLURM_")
    mine = "LOCKSTEP_COMMITS"  # of a test that sets it
    kept = {name: value for name, value in os.environ.items() if name == mine or not launcher.search(name)}
    return kept | {"OMP_NUM_THREADS": "1", "LOCKSTEP_ARENA": "64MiB"} | more


def why_no_world(launcher, world, env=None):
    """Why `launcher` starts no world of two ranks, by the program mpi_world of its MPI; empty where it does.

    A package whose mpirun and library disagree about how ranks are numbered starts worlds of one rank: that is a
    fault of the package, and nothing that needs several ranks can be shown with it.
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
    """A command in a session of its own, with all its output in one text; ended with the test."""

    started = []

    def __init__(self, words, **options):
        options.setdefault("env", environment())
        self.words = words
        self.began = time.monotonic()
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, start_new_session=True, **options)
        # Read at once: a launcher whose reader takes nothing slows its ranks, and drops lines in the end.
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()
        Process.started.append(self)

    def finish(self, seconds=60):
        """Waits for its end. Returns its exit code, its output, and how long it took."""
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
    """What leaves its parents (daemons) becomes a child of this script, and so ends with it."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def children():
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name_end = (text := stat.read_text()).rindex(") ")
        except OSError:
            continue  # it has just ended
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
