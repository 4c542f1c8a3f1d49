"""Gloo's collectives on the CPU: seconds a call on rank 0."""
import argparse

import torch
import torch.distributed as dist

from common import emit, median, run_ranks, seconds_of

SIZES = [1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28]


def repeats(size):
    return 200 if size <= 1 << 16 else 20 if size <= 1 << 22 else 5


def measure(rank, world, options):
    for size in options.sizes:
        count = max(world, size // 4 // world * world)
        whole, part = torch.ones(count), torch.ones(count // world)
        calls = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "broadcast": lambda: dist.broadcast(whole, 0),
        }
        for name, call in calls.items():
            dist.barrier()
            seconds = seconds_of(call, repeats(size))
            if rank == 0:
                emit(op=name, bytes=count * 4, ranks=world, backend="gloo", min=min(seconds),
                     median=median(seconds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    run_ranks(measure, arguments.ranks, arguments)
