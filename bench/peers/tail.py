"""The tail of a step as a DDP user has it: Gloo sums one flat gradient, fused AdamW updates.

This process is one rank that another program started: it says `{"ready": true, "fused": true}` and
answers each line on standard input, a number of tails, by how long each took. Between lines it
blocks and uses no processor.
"""
import argparse
import sys

import torch
import torch.distributed as dist

from common import emit, group, seconds_of


class Tail:
    def __init__(self, options):
        self.flat = torch.empty(options.tensors * options.elements)
        self.parameters = [torch.nn.Parameter(torch.randn(options.elements))
                           for _ in range(options.tensors)]
        for parameter, gradient in zip(self.parameters, self.flat.split(options.elements)):
            parameter.grad = gradient  # as gradient_as_bucket_view has them
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, fused=True)

    def prepare(self):
        self.flat.fill_(1e-3)
        dist.barrier()

    def run(self):
        dist.all_reduce(self.flat)
        self.optimizer.step()

    def seconds(self):
        self.prepare()
        return seconds_of(self.run, 1, warmup=0)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of a tensor")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with group(options.threads):
        tail = Tail(options)
        for _ in range(2):  # uncounted
            tail.seconds()
        emit(ready=True, fused=True)
        for line in sys.stdin:
            emit(seconds=[tail.seconds() for _ in range(int(line))], losses=[], bytes=0)


if __name__ == "__main__":
    main()
