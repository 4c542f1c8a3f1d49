"""Shared by the scripts: a rank of a Gloo group, timing, one JSON object per line."""

import contextlib
import json
import time

import torch
import torch.distributed as dist


@contextlib.contextmanager
def group(threads=1):
    """Joins the Gloo group that RANK, WORLD_SIZE and MASTER_* describe."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def emit(**row):
    print(json.dumps(row), flush=True)


def seconds_of(function, repeat, warmup=0):
    """Returns the seconds of each of `repeat` calls, after `warmup` uncounted calls."""
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds
