"""torchrun from the command until every rank is past its first barrier."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from common import emit

RANK = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def seconds_to_start(ranks):
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "rank.py")
        script.write_text(RANK)
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1",
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
                   "--nproc-per-node", str(ranks), str(script)]
        start = time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    arguments = parser.parse_args()
    emit(launcher="torchrun", ranks=arguments.ranks, seconds=seconds_to_start(arguments.ranks))
