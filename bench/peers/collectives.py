"""Gloo's collectives on the CPU through torch.distributed: seconds a call on rank 0.

With --serve this process is one rank that another program started: it says `{"ready": true,
"library": ...}`, and then for each line on standard input, such as `all_reduce 67108864 ordinary 2
20` (operation, bytes, memory, uncounted calls, calls), makes those calls and says how many
nanoseconds each took. Between lines it blocks and uses no processor.
"""
import argparse
import sys
import time

import torch
import torch.distributed as dist

from common import emit, group, median, run_ranks, seconds_of

SIZES = [1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28]
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
# One rank may return before the others have begun: a barrier stands before each call.
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
ELEMENT_BYTES = 4


class Calls:
    """The tensors of one operation on this rank; called, it makes one call and waits for it."""

    def __init__(self, op, size):
        rank, world = dist.get_rank(), dist.get_world_size()
        whole = torch.empty(size // ELEMENT_BYTES)
        part = torch.empty(whole.numel() // world)
        self.tensors = [whole, part]
        if op == "all_to_all":
            other = torch.empty_like(whole)
            self.tensors.append(other)
        if op in ("gather", "scatter"):
            parts = list(whole.view(world, -1).unbind()) if rank == 0 else None
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
        for tensor in self.tensors:
            tensor.fill_(1)


def nanoseconds(call):
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def serve():
    emit(ready=True, library=f"PyTorch {torch.__version__} Gloo")
    kept, calls = None, None
    for line in sys.stdin:
        op, size, _, uncounted, count = line.split()
        if kept != (op, size):
            calls = None  # its memory first
            kept, calls = (op, size), Calls(op, int(size))
        calls.refill()
        times = []
        for _ in range(int(uncounted) + int(count)):
            if op in ROOTED:
                dist.barrier()
            times.append(nanoseconds(calls.call))
        emit(ns=times[int(uncounted):])


def repeats(size):
    return 200 if size <= 1 << 16 else 20 if size <= 1 << 22 else 5


def measure(rank, world, options):
    for size in options.sizes:
        even = max(world, size // ELEMENT_BYTES // world * world) * ELEMENT_BYTES
        for op in options.op:
            calls = Calls(op, even)
            dist.barrier()
            seconds = seconds_of(calls.call, repeats(size))
            if rank == 0:
                emit(op=op, bytes=even, ranks=world, backend="gloo", min=min(seconds),
                     median=median(seconds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--op", nargs="+", default=OPS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        with group():
            serve()
    else:
        run_ranks(measure, arguments.ranks, arguments)
