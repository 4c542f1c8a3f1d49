"""Saving 512 MB: how long the caller is blocked, and whether an asynchronous save stays whole."""
import os
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from common import emit, free_port

TENSORS, ELEMENTS = 8, 16 << 20


def torn_share(folder):
    """The share of saved values that were written to the tensors after the call."""
    loaded = {name: torch.empty(ELEMENTS) for name in map(str, range(TENSORS))}
    dcp.load(loaded, checkpoint_id=folder)
    return sum(int((values != 0).sum()) for values in loaded.values()) / (TENSORS * ELEMENTS)


def measure(call, save, state):
    with tempfile.TemporaryDirectory() as folder:
        for values in state.values():
            values.zero_()
        start = time.perf_counter()
        pending = save(state, folder)
        blocked = time.perf_counter() - start
        torn = None
        if pending is not None:
            for values in state.values():
                values.fill_(1)
            pending.result()
            torn = torn_share(folder)
        megabytes = TENSORS * ELEMENTS * 4 >> 20
        emit(call=call, megabytes=megabytes, blocked_seconds=blocked, torn_share=torn)


def save_plain(state, folder):
    torch.save(state, pathlib.Path(folder, "state.pt"))


def save_dcp(state, folder):
    dcp.save(state, checkpoint_id=folder)


def save_dcp_async(state, folder):
    return dcp.async_save(state, checkpoint_id=folder)


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    os.environ.update(RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    tensors = {str(number): torch.zeros(ELEMENTS) for number in range(TENSORS)}
    measure("torch.save", save_plain, tensors)
    measure("dcp.save", save_dcp, tensors)
    measure("dcp.async_save", save_dcp_async, tensors)
    dist.destroy_process_group()
