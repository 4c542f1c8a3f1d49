"""Two ranks all-reduce in a loop; rank 1 is killed or stopped. When does rank 0 see an error?"""
import argparse
import datetime
import os
import signal
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from common import emit, free_port

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
MESSAGE_LEAD = 0.05   # the time of death is sent this long before it


def die(how, deaths):
    deaths.put(time.monotonic() + MESSAGE_LEAD)
    time.sleep(MESSAGE_LEAD)
    os.kill(os.getpid(), SIGNALS[how])


def loop(rank, port, how, deaths):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=20))
    values = torch.ones(1024)
    start = time.monotonic()
    while True:
        if rank == 1 and time.monotonic() - start > 1:
            die(how, deaths)
        try:
            dist.all_reduce(values)
        except RuntimeError as error:
            emit(how=how, seconds=time.monotonic() - deaths.get(), error=str(error)[:120])
            return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=list(SIGNALS), default="kill")
    arguments = parser.parse_args()
    context = mp.get_context("spawn")
    meeting, queue = free_port(), context.SimpleQueue()
    ranks = [context.Process(target=loop, args=(rank, meeting, arguments.how, queue))
             for rank in (0, 1)]
    for process in ranks:
        process.start()
    ranks[0].join()
    ranks[1].kill()
