"""One training step under none, DDP, ZeroRedundancyOptimizer, FSDP2 or parallelize_module; one rank, which
bench/run.py starts and controls.

Prints `{"ready": true, "fused": ...}` and answers each line on standard input, a number of steps, with the time of
each step, its first losses and the bytes that the rank holds after the last one. Between lines it blocks and uses no
CPU.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from common import emit, group, seconds_of
from models import MODELS

KEPT_LOSSES = 5


def shard(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for child in model.units():
        fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


def cut(model):
    """Shards by torch.distributed.tensor.parallel: every second layer by its outputs, the layer after it by its
    inputs.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if isinstance(model, MODELS["mlp"]):
        plan = {f"layers.{i}": RowwiseParallel() if i % 2 else ColwiseParallel() for i in range(len(model.layers))}
        parallelize_module(model, mesh, plan)
        return
    for block in model.h:
        block.attn.lay_by_head()
        plan = {"attn.c_attn": ColwiseParallel(), "attn.c_proj": RowwiseParallel()}
        parallelize_module(block, mesh, {**plan, "mlp.c_fc": ColwiseParallel(), "mlp.c_proj": RowwiseParallel()})


def apart(parameters):
    """Separates whole parameters from sharded ones, because one update must not mix them."""
    parameters = list(parameters)
    groups = [[each for each in parameters if hasattr(each, "to_local") == cut] for cut in (False, True)]
    return [{"params": group} for group in groups if group]


def build(options):
    """Returns the model, the object on which forward is called, and the optimizer."""
    torch.manual_seed(1)
    sizes = {"width": options.width, "layers": options.depth}
    model = MODELS[options.model](**{name: size for name, size in sizes.items() if size is not None})
    forward = model
    if options.mode in ("ddp", "zero1"):
        forward = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if options.mode == "fsdp2":
        shard(model)
    if options.mode == "tensor":
        cut(model)
    settings = {"lr": 1e-4, "fused": options.fused}
    if options.mode == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, **settings
        )
        return model, forward, optimizer
    return model, forward, torch.optim.AdamW(apart(model.parameters()), **settings)


def held_bytes(tensors):
    """Returns the bytes of the distinct storages behind this rank's parts of the tensors."""
    memories = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        memory = local.untyped_storage()
        memories[memory.data_ptr()] = memory.nbytes()
    return sum(memories.values())


class Work:
    def __init__(self, rank, options):
        self.model, self.forward, self.optimizer = build(options)
        torch.manual_seed(1234 + (0 if options.mode == "tensor" else rank))
        self.losses = []

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        data, target = self.model.batch()
        loss = self.model.loss(self.forward(data), target)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def held_bytes(self):
        """Returns the bytes of parameters, gradients and the optimizer's state of this rank, between steps."""
        parameters = list(self.model.parameters())
        gradients = [each.grad for each in parameters if each.grad is not None]
        # ZeroRedundancyOptimizer wraps the optimizer that has the state.
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        state = [
            value
            for kept in optimizer.state.values()
            for value in kept.values()
            if torch.is_tensor(value) and value.dim() > 0
        ]
        return held_bytes(parameters + gradients + state)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["none", "ddp", "zero1", "fsdp2", "tensor"], default="ddp")
    parser.add_argument("--model", choices=list(MODELS), default="mlp")
    parser.add_argument("--width", type=int, help="of the model; else that of models.py")
    parser.add_argument("--depth", type=int, help="its layers or blocks; else those of models.py")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with group(options.threads) as (rank, _):
        work = Work(rank, options)
        seconds_of(work.step, 0, warmup=2)
        emit(ready=True, fused=bool(work.optimizer.defaults["fused"]))
        for line in sys.stdin:
            seconds = seconds_of(work.step, int(line))
            emit(seconds=seconds, losses=work.losses[:KEPT_LOSSES], bytes=work.held_bytes())


if __name__ == "__main__":
    main()
