"""PyTorch's DistributedDataParallel under Gloo, on two processes: gradients for python_oracle_test.cc.

Prints "case parameter value value ..." (or "none") for every parameter of rank 0, once all cases have run.
"""

import importlib.util
import multiprocessing
import os
import random
import sys
import tempfile
import types

import torch
import torch._dynamo  # DistributedDataParallel imports it: once here instead of once per rank
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

WORLD = 2


def values(sizes, seed):
    """The same values as values() in support.h: exact in float32."""
    count = torch.Size(sizes).numel()
    numbers = (torch.arange(count) * 7919 + seed * 104729 + 17) % 2003
    return (numbers.float() / 2048 - 0.5).reshape(sizes)


class Branches(torch.nn.Module):
    """Three layers; forward() uses the requested ones."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(3, 3) for _ in range(3))
        with torch.no_grad():
            for seed, parameter in enumerate(self.parameters(), start=1):
                parameter.copy_(values(parameter.shape, seed) * 0.5)

    def forward(self, x, names):
        for name in names:
            x = getattr(self, name)(x)
        return x


def show(lines, case, model):
    for name, parameter in model.module.named_parameters():
        gradient = parameter.grad
        text = "none" if gradient is None else " ".join(f"{v:.9g}" for v in gradient.flatten().tolist())
        lines.append(f"{case} {name} {text}")


def backward(model, rank, paths):
    path = paths[rank]
    model(values([2, 3], rank), path).square().sum().backward()


def bf16_hook(state, bucket):
    """PyTorch's hook, under another name, because PyTorch refuses the original name without NCCL."""
    return default_hooks.bf16_compress_hook(state, bucket)


HOOKS = {
    "bf16": bf16_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "power": powerSGD_hook.powerSGD_hook,
}


def power_state():
    """Two exact steps, then a Q from the test instead of a random one."""
    if importlib.util.find_spec("numpy") is None:  # the hook uses numpy only for random numbers
        sys.modules["numpy"] = types.SimpleNamespace(random=types.SimpleNamespace(RandomState=random.Random))
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )
    state.p_memory_dict[0], state.q_memory_dict[0] = torch.zeros(12), values([10], 3)
    return state


def run(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    lines = []

    model = DistributedDataParallel(Branches())
    backward(model, rank, ["abc", "abc"])
    show(lines, "plain", model)

    model = DistributedDataParallel(Branches(), gradient_as_bucket_view=True)
    with model.no_sync():
        backward(model, rank, ["abc", "acb"])
    backward(model, rank, ["cba", "abc"])
    show(lines, "accumulated", model)

    for bucket_view in (False, True):
        suffix = "_view" if bucket_view else ""
        new = lambda: DistributedDataParallel(
            Branches(), find_unused_parameters=True, gradient_as_bucket_view=bucket_view
        )
        model = new()
        backward(model, rank, ["a", "ab"])
        show(lines, "unused" + suffix, model)

        model = new()
        backward(model, rank, ["abc", "abc"])
        backward(model, rank, ["a", "ab"])
        show(lines, "kept" + suffix, model)

        model = new()
        with model.no_sync():
            backward(model, rank, ["b", "c"])
        backward(model, rank, ["ab", "a"])
        show(lines, "paused" + suffix, model)

    for name, hook in HOOKS.items():
        layer = DistributedDataParallel(torch.nn.Linear(10, 12))
        layer.register_comm_hook(power_state() if name == "power" else None, hook)
        for step in range(6):
            layer.zero_grad()
            x, factor = values([3, 10], 10 * step + rank), values([3, 12], 10 * step + 5 + rank)
            (layer(x) * factor).sum().backward()
        show(lines, name, layer)

    dist.barrier()
    if rank == 0:
        print("\n".join(lines))
        sys.stdout.flush()
    dist.destroy_process_group()
    os._exit(0)


with tempfile.TemporaryDirectory() as folder:
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run, args=(rank, folder)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        sys.exit(1)
