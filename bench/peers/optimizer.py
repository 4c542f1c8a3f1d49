"""AdamW over fp32 parameters, default or fused; bench/run.py starts and controls it.

Prints `{"ready": true}` and answers each line on standard input, "update N", with the seconds of N steps. Between
lines it blocks and uses no CPU.
"""

import argparse
import sys

import torch

from common import emit, seconds_of


def optimizer_of(options):
    parameters = [torch.nn.Parameter(torch.randn(options.elements)) for _ in range(options.tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=options.kind == "fused")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["default", "fused"], default="default")
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of a tensor")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    optimizer = optimizer_of(options)
    seconds_of(optimizer.step, 0, warmup=2)
    emit(ready=True)
    for line in sys.stdin:
        emit(seconds=seconds_of(optimizer.step, int(line.split()[1])))


if __name__ == "__main__":
    main()
