"""Gloo's collectives on the CPU through torch.distributed: one rank, which bench/run.py starts and controls.

Prints `{"ready": true, "library": ...}` and then answers each line on standard input:

    check OP BYTES MEMORY            creates the tensors and compares the result of one call with the expected one
    run OP BYTES MEMORY UNCOUNTED N  {"ns": [...]}: nanoseconds of each of N calls

Between lines it blocks and uses no CPU.
"""

import sys
import time

import torch
import torch.distributed as dist

from common import emit, group

# One rank may return before the others have begun, so a barrier precedes each call.
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
ELEMENT_BYTES = 4
PERIOD, RANK_STEP = 4093, 4096  # of the values: src/apps/bench/collectives/kinds.cc


def input_values(rank, begin, end):
    return (torch.arange(begin, end) % PERIOD + RANK_STEP * rank).float()


def expected_output(op, rank, ranks, whole):
    """Returns the expected output of the call; None if it is undefined."""
    part = whole // ranks
    own = (rank * part, (rank + 1) * part)
    parts = range(ranks)
    if op == "barrier" or op in ("reduce", "gather") and rank != 0:
        return None
    if op in ("all_reduce", "reduce"):
        return sum(input_values(each, 0, whole) for each in parts)
    if op == "reduce_scatter":
        return sum(input_values(each, *own) for each in parts)
    if op in ("all_gather", "gather"):
        return torch.cat([input_values(each, 0, part) for each in parts])
    if op == "all_to_all":
        return torch.cat([input_values(each, *own) for each in parts])
    return input_values(0, *own) if op == "scatter" else input_values(0, 0, whole)


class Calls:
    """The tensors of one operation on this rank; calling it makes one call and waits for it."""

    def __init__(self, op, size):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.op = op
        whole = torch.empty(size // ELEMENT_BYTES)
        part = torch.empty(whole.numel() // world)
        other = torch.empty_like(whole) if op == "all_to_all" else None
        parts = list(whole.view(world, -1).unbind()) if op in ("gather", "scatter") and rank == 0 else None
        self.input, self.output = {
            "all_gather": (part, whole),
            "gather": (part, whole),
            "reduce_scatter": (whole, part),
            "scatter": (whole, part),
            "all_to_all": (whole, other),
        }.get(op, (whole, whole))
        self.call = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "reduce": lambda: dist.reduce(whole, 0),
            "broadcast": lambda: dist.broadcast(whole, 0),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_to_all": lambda: dist.all_to_all_single(other, whole),
            "gather": lambda: dist.gather(part, parts, 0),
            "scatter": lambda: dist.scatter(part, parts, 0),
            "barrier": lambda: dist.barrier(),
        }[op]
        self.refill()

    def refill(self):
        self.input.fill_(1)
        self.output.fill_(1)

    def check(self):
        rank = dist.get_rank()
        self.input.copy_(input_values(rank, 0, self.input.numel()))
        self.call()
        whole = max(self.input.numel(), self.output.numel())
        expected = expected_output(self.op, rank, dist.get_world_size(), whole)
        if expected is None or torch.equal(self.output, expected):
            return
        wrong = int((self.output != expected).nonzero()[0])
        raise SystemExit(
            f"{self.op} of {whole * ELEMENT_BYTES} bytes: rank {rank} expected {expected[wrong]} at element "
            f"{wrong}, found {self.output[wrong]}"
        )

    def nanoseconds(self):
        if self.op in ROOTED:
            dist.barrier()
        start = time.perf_counter_ns()
        self.call()
        return time.perf_counter_ns() - start


def serve():
    emit(ready=True, library=f"PyTorch {torch.__version__} Gloo")
    calls = None
    for line in sys.stdin:
        order, op, size, _, *counts = line.split()
        if order == "check":
            calls = None  # frees its memory first
            calls = Calls(op, int(size))
            calls.check()
            emit(checked=True)
            continue
        uncounted, count = map(int, counts)
        calls.refill()
        times = [calls.nanoseconds() for _ in range(uncounted + count)]
        emit(ns=times[uncounted:])


if __name__ == "__main__":
    with group():
        serve()
