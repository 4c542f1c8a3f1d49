"""A training step of a model in pipeline stages, by torch.distributed.pipelining on Gloo.

This process is one rank, which bench/run.py starts and controls: it prints `{"ready": true}`, and answers a number of
steps with the time of each step and, on the rank of the last stage, the loss of the last step.
"""

import argparse
import importlib.util
import pickle
import sys

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleZBVZeroBubble

from common import emit, group, seconds_of

if importlib.util.find_spec("numpy") is None:
    # In the first step, ranks exchange sizes as pickled objects, which needs NumPy to view bytes.
    c10d._tensor_to_object = lambda tensor, size, group: pickle.loads(bytes(tensor[:size].tolist()))

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "zbv": ScheduleZBVZeroBubble}


def stages_of(options, rank, ranks):
    """Returns this rank's stages in the form of torch.distributed.pipelining."""
    torch.manual_seed(1)
    layers = []
    for _ in range(options.depth):
        layers += [nn.Linear(options.width, options.width), nn.ReLU()]
    count = ranks * (2 if options.schedule == "zbv" else 1)
    own = [rank, count - 1 - rank] if options.schedule == "zbv" else [rank]
    cut = [2 * (options.depth * stage // count) for stage in range(count + 1)]
    return [PipelineStage(nn.Sequential(*layers[cut[i] : cut[i + 1]]), i, count, torch.device("cpu")) for i in own]


class Work:
    def __init__(self, options, rank, ranks):
        self.stages = stages_of(options, rank, ranks)
        given = self.stages if options.schedule == "zbv" else self.stages[0]
        self.schedule = SCHEDULES[options.schedule](given, options.micro_batches, loss_fn=F.mse_loss)
        parameters = [parameter for stage in self.stages for parameter in stage.submod.parameters()]
        self.sgd = torch.optim.SGD(parameters, lr=1e-2)
        torch.manual_seed(1234)
        rows = options.rows * options.micro_batches
        self.input, self.target = torch.randn(rows, options.width), torch.randn(rows, options.width)
        self.has_first = any(stage.is_first for stage in self.stages)
        self.has_last = any(stage.is_last for stage in self.stages)
        self.loss = 0.0

    def step(self):
        self.sgd.zero_grad()
        losses = []
        inputs = (self.input,) if self.has_first else ()
        told = {"target": self.target, "losses": losses} if self.has_last else {}
        self.schedule.step(*inputs, **told)
        self.sgd.step()
        if losses:
            self.loss = torch.stack(losses).detach().mean().item()

    def seconds(self):
        dist.barrier()
        return seconds_of(self.step, 1)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="1f1b")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--rows", type=int, default=128, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with group(options.threads) as (rank, ranks):
        work = Work(options, rank, ranks)
        emit(ready=True)
        for line in sys.stdin:
            seconds = [work.seconds() for _ in range(int(line))]
            emit(seconds=seconds, losses=[work.loss] if work.has_last else [])


if __name__ == "__main__":
    main()
