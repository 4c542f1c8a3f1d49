#!/usr/bin/env python3
"""Ranks that srun started, on one node of a real Slurm whose daemons this script starts and ends.

Everything is in a scratch folder: munge's key and socket, the configuration, spool and logs. Nothing is installed.
"""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time

from support import Process, adopt_orphans, end_all, environment, example, expect, expect_words
from support import fail, run, shown, skip

PROGRAMS = ["srun", "sbatch", "salloc", "sinfo", "slurmctld", "slurmd", "munged"]
CONFIGURATION = """
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SchedulerType=sched/builtin
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until(what, done, folder, seconds=20):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.log")))
            fail(f"{what} did not come up within {seconds} s", logs)
        time.sleep(0.1)


def start_munge(folder):
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    Process(["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
             f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"])
    wait_until("munge", (folder / "munge.socket").exists, folder)


def start_slurm(folder):
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, host=host, controller_port=free_port(),
                                                  node_port=free_port(), cpus=max(1, os.cpu_count())))
    # No control groups; Slurm before 23 requires them to exist, although it does not use them.
    version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True).stdout
    old = int(re.search(r"\d+", version)[0]) < 23
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={'autodetect' if old else 'disabled'}\n")
    variables = environment(SLURM_CONF=str(configuration))
    Process(["slurmctld", "-D", "-c", "-f", str(configuration)], env=variables)
    Process(["slurmd", "-D", "-f", str(configuration), "-N", host], env=variables)

    def is_idle():
        state = subprocess.run(["sinfo", "--noheader", "--format=%T"], env=variables, capture_output=True, text=True)
        return state.stdout.strip() == "idle"

    wait_until("Slurm", is_idle, folder)
    return variables


def hello_of(ranks):
    return [f"hello from rank {rank} of {ranks} on backend shm" for rank in range(ranks)]


def check(what, words, variables, *expected):
    code, output, seconds = run(words, env=variables)
    expect(code == 0, f"{what}: exit code {code}", output)
    expect_words(output, *expected)
    shown(what, seconds)
    return output


def check_all(variables, folder):
    hello, training = example("01_hello_ranks"), example("04_your_own_model")
    srun = ["srun", "--overcommit", "--time=1"]
    check("srun, 3 tasks", [*srun, "-n", "3", hello], variables, *hello_of(3))
    check("srun, DDP on 2 tasks", [*srun, "-n", "2", training], variables, "final loss 0.000")
    alone = "hello from rank 0 of 1 "
    check("salloc's shell is one process, srun in it is two", ["salloc", "-n", "2", "--overcommit", "sh", "-ec",
                                                               f"{hello}; {' '.join(srun)} -n 2 {hello}"],
          variables, alone, *hello_of(2))
    check_batch(variables, folder, hello, alone)


def check_batch(variables, folder, hello, alone):
    script, output, end = folder / "batch.sh", folder / "batch.out", folder / "batch.end"
    script.write_text(f"#!/bin/sh\n{hello}\ntouch {end}\n")
    check("sbatch", ["sbatch", "-n", "2", "--overcommit", f"--output={output}", str(script)], variables)
    begin = time.monotonic()
    wait_until("the batch script", end.exists, folder)
    expect_words(output.read_text(), alone)
    wait_until("the end of the job", lambda: run(["squeue", "--noheader"], env=variables)[1].strip() == "", folder)
    shown("its script is one process", time.monotonic() - begin)


def main():
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        skip(f"{', '.join(missing)} not installed (packages slurm-wlm, munge)")
    if os.geteuid() != 0:
        skip("Slurm's daemons are started as root here")
    with tempfile.TemporaryDirectory(prefix="lockstep-slurm-") as name, contextlib.ExitStack() as at_end:
        at_end.callback(end_all)
        adopt_orphans()
        folder = pathlib.Path(name)
        begin = time.monotonic()
        folder.chmod(0o755)
        start_munge(folder)
        variables = start_slurm(folder)
        shown("munge, slurmctld and slurmd", time.monotonic() - begin)
        check_all(variables, folder)


if __name__ == "__main__":
    main()
