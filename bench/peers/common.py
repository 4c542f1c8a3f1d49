"""What the scripts share: ranks over Gloo, timing, one JSON object a line."""
import contextlib
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def group(threads=1):
    """This process as a rank of the Gloo group that RANK, WORLD_SIZE and MASTER_* describe."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def _rank(rank, world, port, function, arguments, threads):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    with group(threads):
        function(rank, world, arguments)


def run_ranks(function, world, arguments, threads=1):
    """Calls function(rank, world, arguments) in `world` processes of one Gloo group; joins them."""
    passed = (world, free_port(), function, arguments, threads)
    mp.spawn(_rank, passed, nprocs=world, join=True)


def emit(**row):
    print(json.dumps(row), flush=True)


def seconds_of(function, repeat, warmup=2):
    """Seconds of each of `repeat` calls, after `warmup` uncounted ones."""
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def median(values):
    return sorted(values)[len(values) // 2]
