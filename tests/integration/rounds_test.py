#!/usr/bin/env python3
"""lockstep run --max-restarts with killed ranks: a Python program of torch.distributed, and ours.

The Python program is written for torchrun: DDP on Gloo, a checkpoint in each step, resumed after a restart. Its final
parameters must equal those of an undisturbed run, and its environment must be that of torchrun.
"""
import pathlib
import tempfile

from support import end_all, example, expect, expect_words, lockstep, python, run, shown, skip

DDP = '''
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

STEPS = 30

@record
def main(folder, victim):
    folder = pathlib.Path(folder)
    dist.init_process_group("gloo")
    rank, round = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saved, begin = folder / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    dist.barrier()
    for step in range(begin, STEPS):
        if rank == 1 and round == 0 and step == 10:
            if victim == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if victim == "raise":
                raise ValueError("a mistake of mine")
        torch.manual_seed(1000 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            part = folder / "checkpoint.part"
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, part)
            part.rename(saved)
    dist.barrier()
    assert torch.distributed.is_torchelastic_launched()
    if rank == 0:
        print("weights", sum(p.double().sum().item() for p in model.parameters()), begin, flush=True)
    dist.destroy_process_group()

main(*sys.argv[1:])
'''

# Without a process group: workers of torchrun use Gloo, whose connections may fail after a restart.
ENVIRONMENT = '''
import os, signal, time

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
         "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
line = " ".join(["environment", *(f"{name}={os.environ[name]}" for name in names)])
os.write(1, (line + "\\n").encode())   # in one piece: torchrun's ranks share the pipe and do not buffer
for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
    assert os.environ[name], name
'''


def lines_with(output, word):
    """Returns the text after the word in each line, without the launcher's prefix, sorted."""
    return sorted(line[line.index(word):] for line in output.splitlines() if word in line)


def ddp(launch, folder, victim):
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(DDP)
    return run([*launch, str(script), str(folder), victim], seconds=120)


def lockstep_with(*options):
    return [lockstep(), "run", "-n", "2", *options, python()]


def killed_in_python(folder):
    code, calm, _ = ddp(lockstep_with("--max-restarts", "3"), folder / "calm", "nobody")
    expect(code == 0, "an undisturbed run", calm)
    code, killed, seconds = ddp(lockstep_with("--max-restarts", "3"), folder / "killed", "kill")
    expect(code == 0, "a run with a killed rank", killed)
    expect_words(killed, r"rank 1 of 2 \(pid \d+\) was killed by signal 9 \(SIGKILL\)",
                 "round 1 begins: 2 ranks on 1 node, 1 of 3 restarts used")
    weights = lines_with(calm, "weights")[0].split()[1]
    again = lines_with(killed, "weights")[0].split()
    expect(again[1] == weights and int(again[2]) > 0, f"expected the weights {weights}, found {again}", killed)
    shown("a Python program of DDP with a rank killed ends with the same weights", seconds)


def same_environment_as_torchrun(folder):
    script = folder / "environment.py"
    script.write_text(ENVIRONMENT)
    torchrun = [python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3",
                "--master-port", "0", "--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
                "--local-addr", "127.0.0.1"]
    code, theirs, _ = run([*torchrun, str(script)], seconds=120)
    expect(code == 0, "torchrun", theirs)
    code, ours, seconds = run([*lockstep_with("--max-restarts", "3"), str(script)], seconds=120)
    expect(code == 0, "lockstep run", ours)
    expected, found = lines_with(theirs, "environment"), lines_with(ours, "environment")
    expect(len(found) == 2 and found == expected, "the environment differs from torchrun's",
           "\n".join([*expected, *found]))
    shown("ranks find what torchrun gives, also after a restart", seconds)


def recorded_in_python(folder):
    code, output, seconds = ddp(lockstep_with(), folder / "raises", "raise")
    expect(code == 1, f"exit code {code}", output)
    expect_words(output, "its error file says:", r"\| ValueError: a mistake of mine")
    shown("what @record wrote is in the report", seconds)


def rendezvous(folder):
    """One of our ranks dies before it has joined the group."""
    script = (f"[ $RANK = 1 ] && [ $LOCKSTEP_ROUND = 0 ] && {{ sleep 0.3; kill -9 $$; }};"
              f"exec {example('01_hello_ranks')}")
    code, output, seconds = run([lockstep(), "run", "-n", "3", "--max-restarts", "1", "sh", "-c", script])
    expect(code == 0, f"exit code {code}", output)
    for rank in range(3):
        expect_words(output, f"hello from rank {rank} of 3 on backend shm")
    shown("a rank dies while the others wait for it in init()", seconds)


def cannot_start(folder):
    """An error that every rank would meet again uses no restarts, and is shown once."""
    train = [lockstep(), "train", "gpt", "--data", str(folder / "missing"), "--out", str(folder / "out")]
    for words, reason, expected in ((train, "found nothing with this name", 1),
                                    ([lockstep(), "generate", "--no-such-option"], "unknown option", 2)):
        code, output, seconds = run([lockstep(), "run", "-n", "2", "--max-restarts", "5", *words])
        expect(code == expected, f"exit code {code}", output)
        expect("round 1 begins" not in output and output.count(reason) == 1, "tried again, or said twice", output)
        expect_words(output, r"ended with exit code \d at .*, ")
    shown("two programs that cannot start were not tried again", seconds)


def main():
    with tempfile.TemporaryDirectory(prefix="lockstep-rounds-") as name:
        folder = pathlib.Path(name)
        rendezvous(folder)
        cannot_start(folder)
        if python() is None:
            skip("no Python with torch: set LOCKSTEP_PYTHON")
        killed_in_python(folder)
        same_environment_as_torchrun(folder)
        recorded_in_python(folder)


if __name__ == "__main__":
    try:
        main()
    finally:
        end_all()
