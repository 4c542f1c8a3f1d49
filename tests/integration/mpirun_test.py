#!/usr/bin/env python3
"""Ranks that mpirun started form a group without our launcher: Open MPI's and MPICH's, on one host."""
import os
import shutil
import tempfile

from support import end_all, environment, example, expect, expect_words, lockstep, run, shown, skip

# Names in Debian, where both can be installed side by side.
LAUNCHERS = {"OpenMPI": "mpirun.openmpi", "MPICH": "mpirun.mpich"}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}


def options_of(name):
    return ["--oversubscribe", "--bind-to", "none"] if name == "OpenMPI" else ["-bind-to", "none"]


def hello(name, launcher, *through):
    program = example("01_hello_ranks")
    code, output, seconds = run([launcher, *options_of(name), "-n", "3", *through, program],
                                env=environment(LOCKSTEP_BACKEND="shm", **ROOT))
    expect(code == 0, f"{name}: exit code {code}", output)
    expect_words(output, *[f"hello from rank {rank} of 3 on backend shm" for rank in range(3)])
    shown(f"{name}: three ranks on shm{' through a shell' if through else ''}", seconds)


def train(name, launcher):
    """Trains under mpirun. --ranks is the expected number of ranks: a process must not start more ranks itself."""
    environment_of_ranks = environment(**ROOT)
    with tempfile.TemporaryDirectory() as folder:
        def command(ranks, out):
            words = [launcher, *options_of(name), "-n", str(ranks), lockstep(), "train", "mlp", "--ranks", "2"]
            words += ["--steps", "2", "--threads", "1", "--out", f"{folder}/{out}"]
            return run(words, env=environment_of_ranks)
        code, output, seconds = command(2, "two")
        expect(code == 0 and output.count("done: val_loss=") == 1, f"{name}: exit code {code}", output)
        code, output, _ = command(1, "one")
        expect(code == 2, f"{name}: exit code {code}", output)
        expect_words(output, "lockstep train: --ranks 2: the launcher started 1")
    shown(f"{name}: lockstep train --ranks 2", seconds)


def main():
    found = {name: path for name, launcher in LAUNCHERS.items() if (path := shutil.which(launcher))}
    if not found:
        skip("neither OpenMPI nor MPICH is installed (packages openmpi-bin, mpich)")
    for name in LAUNCHERS:
        if name not in found:
            print(f"{name} is not installed")
    for name, launcher in found.items():
        hello(name, launcher)
        train(name, launcher)
    if "MPICH" in found:  # ranks recognise each other by a common ancestor process
        hello("MPICH", found["MPICH"], "sh", "-c", '"$0"; exit $?')


if __name__ == "__main__":
    try:
        main()
    finally:
        end_all()
