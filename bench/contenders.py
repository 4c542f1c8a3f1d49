"""Rank processes that are started once and then work only on request, in lines of text.

A rank reads lines and answers each with one line of JSON. Between two lines, it is blocked in a read and uses no CPU,
so that several systems can be measured in turn on the same cores. It exits when its input ends.
"""

import ctypes
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 180  # seconds; more than any turn takes, so a longer wait is a hang
KILLED_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Failed(Exception):
    """An error that ends the command with one line."""


def our_malloc(rank_program):
    """Returns init()'s malloc settings as variables, for a PyTorch process that should use the same."""
    return json.loads(subprocess.run([str(rank_program), "malloc"], capture_output=True, check=True).stdout)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(threads, variables):
    """Returns an environment in which OpenMP's threads sleep, so that an idle system leaves the cores to the measured
    one.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC_", "LOCKSTEP_STORE"))
    }
    return {**kept, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **variables}


def place(rank, ranks, port):
    """Returns the variables that torchrun would set for this rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"bench-{port}",
    }


def end_with_parent():
    ctypes.CDLL(None).prctl(KILLED_WITH_PARENT, signal.SIGKILL)


class Ranks:
    def __init__(self, name):
        self.name = name
        self.processes = []
        self.inputs, self.outputs, self.unread = [], [], []
        self.fifos = []  # descriptors of ours

    @classmethod
    def start_each(cls, name, command, ranks, threads=1, variables=None):
        """Starts one process per rank, with requests and answers on its standard input and output."""
        started, port = cls(name), free_port()
        for rank in range(ranks):
            told = environment(threads, {**place(rank, ranks, port), **(variables or {})})
            process = subprocess.Popen(
                [str(word) for word in command],
                env=told,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=end_with_parent,
            )
            started.processes.append(process)
            started._add_channel(process.stdin.fileno(), process.stdout.fileno())
        return started

    @classmethod
    def start_by_launcher(cls, name, command, ranks, folder, variables=None):
        """Starts one process that starts the ranks itself, such as mpirun; rank r reads FOLDER/in.r and writes
        FOLDER/out.r.
        """
        started, folder = cls(name), pathlib.Path(folder)
        for rank in range(ranks):
            ends = []
            for direction in ("in", "out"):
                path = folder / f"{direction}.{rank}"
                os.mkfifo(path, 0o600)
                # Opened for reading and writing, so that open() does not wait for the rank, and
                # reads never see the end of the file.
                ends.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            started.fifos += ends
            started._add_channel(*ends)
        # The launcher's own standard input stays open and silent, so that it cannot read the caller's input.
        started.processes.append(
            subprocess.Popen(
                [str(word) for word in command],
                env=environment(1, variables or {}),
                stdin=subprocess.PIPE,
                stdout=sys.stderr,
                preexec_fn=end_with_parent,
            )
        )
        return started

    def _add_channel(self, to_rank, from_rank):
        self.inputs.append(to_rank)
        self.outputs.append(from_rank)
        self.unread.append(b"")

    def __len__(self):
        return len(self.inputs)

    def answer(self, rank):
        """Returns the next line of a rank. Raises Failed if a process ended, or if no line comes within minutes."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self.unread[rank]:
            readable, _, _ = select.select([self.outputs[rank]], [], [], 0.2)
            data = os.read(self.outputs[rank], 1 << 16) if readable else b""
            self.unread[rank] += data
            if readable and not data or not readable and self.ended():
                raise Failed(
                    f"{self.name} ended before the answer of rank {rank}: {self.ended() or 'a closed output'}"
                )
            if time.monotonic() > until:
                raise Failed(f"rank {rank} of {self.name} has not answered for {PATIENCE} s")
        line, self.unread[rank] = self.unread[rank].split(b"\n", 1)
        return json.loads(line)

    def ended(self):
        """Returns which processes ended and how; empty while all run."""
        codes = [(i, process.poll()) for i, process in enumerate(self.processes)]
        return ", ".join(f"process {i} with {code}" for i, code in codes if code is not None)

    def answers(self):
        return [self.answer(rank) for rank in range(len(self))]

    def ask(self, line):
        """Sends the same line to every rank and returns their answers."""
        for descriptor in self.inputs:
            try:
                os.write(descriptor, line.encode() + b"\n")
            except BrokenPipeError:
                pass  # the answer has the reason
        return self.answers()

    def close(self):
        """Ends the ranks by closing their input, and waits for them."""
        for descriptor in self.fifos:
            os.close(descriptor)
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            for force in (process.terminate, process.kill, process.wait):
                try:
                    process.wait(5)
                    break
                except subprocess.TimeoutExpired:
                    force()
            if process.stdout:
                process.stdout.close()
        self.processes, self.fifos = [], []


def in_turn(contenders, rounds):
    """Yields contenders in turn. Round i begins with contender i, so that the order varies."""
    for turn in range(rounds):
        for i in range(len(contenders)):
            yield contenders[(i + turn) % len(contenders)]


def products_of(contenders):
    """Returns a text that names the library of our matrix products. PyTorch uses MKL, as it does for its users."""
    for one in contenders:
        if "products" in one.ready[0]:
            return f"; products of ours by {one.ready[0]['products']}"
    return ""


class Steps:
    """Ranks that make a number of steps on request and report the time of each. The time of a step is that of its
    slowest rank."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.ready = ranks.answers()
        self.seconds, self.by_round, self.losses, self.bytes = [], [], [], 0

    def take_turn(self, line, uncounted=0):
        answers = self.ranks.ask(line)
        slowest = [max(step) for step in zip(*(answer["seconds"] for answer in answers))][uncounted:]
        self.seconds += slowest
        self.by_round.append(sum(slowest) / len(slowest))
        self.losses = answers[0].get("losses", [])
        self.bytes = max(self.bytes, *(answer.get("bytes", 0) for answer in answers))

    def forget(self):
        """Discards the measurements so far."""
        self.seconds, self.by_round = [], []
