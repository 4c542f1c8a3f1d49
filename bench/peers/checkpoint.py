"""Saves a model and AdamW's state by torch.distributed.checkpoint; bench/run.py starts and controls it.

Prints `{"ready": true}`, and answers each line on standard input, "save N" or "async N", with the seconds for which N
calls of dcp.save or of dcp.async_save block. Between lines it blocks and uses no CPU.
"""

import argparse
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed.checkpoint as dcp

from common import emit


class Saved:
    def __init__(self, options):
        elements = (options.mib << 20) // 3 // 4 // 16
        parameters = [torch.nn.Parameter(torch.randn(elements)) for _ in range(16)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        optimizer.step()
        self.state = {f"model.p{i}": parameter.detach() for i, parameter in enumerate(parameters)}
        for i, parameter in enumerate(parameters):
            self.state |= {f"optimizer.p{i}.{field}": value for field, value in optimizer.state[parameter].items()}
        self.folder, self.count = pathlib.Path(options.folder), 0

    def seconds(self, what):
        self.count += 1
        out = self.folder / f"dcp{self.count}"
        start = time.perf_counter()
        future = (dcp.async_save if what == "async" else dcp.save)(self.state, checkpoint_id=out)
        seconds = time.perf_counter() - start
        if what == "async":
            future.result()
        shutil.rmtree(out)
        os.sync()
        return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    saved = Saved(options)  # one process without a group: gathering plans would need NumPy
    emit(ready=True)
    for line in sys.stdin:
        what, times = line.split()
        emit(seconds=[saved.seconds(what) for _ in range(int(times))])


if __name__ == "__main__":
    main()
