"""The tail of a step in PyTorch, from gradients on every rank to updated parameters on every rank.

    replicated   Gloo sums one flat gradient, fused AdamW updates everything on every rank (DDP)
    sharded      reduce_scatter of the gradient, fused AdamW of this rank's shard, all_gather of the parameters (ZeRO)

Neither divides by the number of ranks. This process is one rank, which bench/run.py starts and controls: it prints
`{"ready": true, "fused": ...}` and answers a number of tails with the time of each.
"""

import argparse
import sys

import torch
import torch.distributed as dist

from common import emit, group, seconds_of


def parameters_over(gradient, options):
    """Makes parameters whose gradients are views of the flat gradient, like gradient_as_bucket_view."""
    parameters = [torch.nn.Parameter(torch.randn(part.numel())) for part in gradient.split(options.elements)]
    for parameter, part in zip(parameters, gradient.split(options.elements)):
        parameter.grad = part
    return parameters


class Replicated:
    def __init__(self, options):
        self.flat = torch.empty(options.tensors * options.elements)
        self.optimizer = torch.optim.AdamW(parameters_over(self.flat, options), lr=1e-4, fused=True)

    def run(self):
        dist.all_reduce(self.flat)
        self.optimizer.step()


class Sharded:
    def __init__(self, options):
        whole = options.tensors * options.elements
        self.flat = torch.empty(whole)
        self.gradient = torch.empty(whole // dist.get_world_size())
        self.shard = torch.nn.Parameter(torch.randn(self.gradient.numel()))
        self.shard.grad = self.gradient
        self.parameters = torch.empty(whole)
        self.optimizer = torch.optim.AdamW([self.shard], lr=1e-4, fused=True)

    def run(self):
        dist.reduce_scatter_tensor(self.gradient, self.flat)
        self.optimizer.step()
        dist.all_gather_into_tensor(self.parameters, self.shard.data)


def seconds(tail):
    tail.flat.fill_(1e-3)
    dist.barrier()
    return seconds_of(tail.run, 1)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["replicated", "sharded"], default="replicated")
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of a tensor")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with group(options.threads):
        tail = (Replicated if options.kind == "replicated" else Sharded)(options)
        for _ in range(2):  # warm-up
            seconds(tail)
        emit(ready=True, fused=bool(tail.optimizer.defaults["fused"]))
        for line in sys.stdin:
            emit(seconds=[seconds(tail) for _ in range(int(line))], losses=[], bytes=0)


if __name__ == "__main__":
    main()
