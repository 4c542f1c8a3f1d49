"""A Gloo rank under torchrun: runs until the first barrier, or makes steps in as many rounds as necessary."""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist


def mark(folder, name):
    """Writes the current time to a file, atomically."""
    partial = folder / f"{name}.partial"
    partial.write_text(f"{time.monotonic_ns()} {os.getpid()}")
    partial.rename(folder / name)


def main():
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    if what == "start":
        dist.init_process_group("gloo")
    else:  # the agent's store has addresses of the last round (2.13); a file avoids that
        meeting = folder / f"meeting.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        dist.init_process_group("gloo", init_method=f"file://{meeting}", **place)
    rank, size = dist.get_rank(), dist.get_world_size()
    if what == "start":
        dist.barrier()
        mark(folder, f"started.{rank}")
        dist.destroy_process_group()
        return
    restarts, first, stop = os.environ["TORCHELASTIC_RESTART_COUNT"], True, 0
    while stop == 0:
        gradient = torch.ones(1 << 16)
        if (folder / "stop").exists():
            gradient *= 2
        dist.all_reduce(gradient)
        stop = gradient[0].item() - size
        if first:
            mark(folder, f"step.{restarts}.{rank}")
            first = False
        time.sleep(0.001)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
