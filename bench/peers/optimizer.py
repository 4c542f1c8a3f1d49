"""AdamW over 16,777,216 fp32 parameters in one thread, default and fused: ns a parameter.

With --serve KIND this process was started by another program: it says `{"ready": true}` and answers
each line on standard input, "update N", by the seconds of N steps. Between lines it blocks and uses
no processor.
"""
import argparse
import sys

import torch

from common import emit, seconds_of


def optimizer_of(kind, options):
    parameters = [torch.nn.Parameter(torch.randn(options.elements)) for _ in range(options.tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=kind == "fused")


def serve(options):
    optimizer = optimizer_of(options.serve, options)
    seconds_of(optimizer.step, 0)  # the uncounted steps
    emit(ready=True)
    for line in sys.stdin:
        emit(seconds=seconds_of(optimizer.step, int(line.split()[1]), warmup=0))


def measure(kind, options):
    seconds = seconds_of(optimizer_of(kind, options).step, 10)
    emit(optimizer=kind, ns_per_param=min(seconds) * 1e9 / (options.tensors * options.elements))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of a tensor")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", choices=["default", "fused"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.serve:
        return serve(options)
    measure("default", options)
    measure("fused", options)


if __name__ == "__main__":
    main()
