#!/usr/bin/env python3
"""The backend mpi when a rank is killed, never calls or ends late: which one is named, and that everything ends."""
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time

from support import Process, build_folder, end_all, environment, expect, expect_words, run, shown, skip, why_no_world

ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
# Names in Debian.
LAUNCHERS = {
    "OpenMPI": ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none"],
    "MPICH": ["mpirun.mpich", "-bind-to", "none"],
}
# Ways to keep the other ranks alive until they report the lost rank: options of mpirun, or a process between mpirun
# and the rank that ends later. Without either, mpirun ends all ranks, often before they report.
RECOVERY = {"OpenMPI": ["--enable-recovery"]}
STAYS_LONGER = ["sh", "-c", '"$0" "$@"; code=$?; sleep 1; exit $code']


def program(name):
    path = build_folder() / "tests/programs" / name
    if not path.exists():
        skip(f"the build has no program {name}")
    return str(path)


def ranks(words, name, through=()):
    return [*words, "-n", "3", *through, program(name)], environment(LOCKSTEP_BACKEND="mpi", **ROOT)


def killed(name, words, log, through=(), others_live=True):
    """Writes the output to the file `log`."""
    command, variables = ranks(words, "all_reduce_loop", through)
    log.write_text("")
    process = Process(["sh", "-c", f'exec "$@" >"{log}" 2>&1', "sh", *command], env=variables)
    victims = []
    until = time.monotonic() + 30
    while len(victims) < 3 and time.monotonic() < until:
        time.sleep(0.05)
        victims = re.findall(r"pid (\d+)", log.read_text(errors="replace"))
    expect(len(victims) == 3, f"{name}: three ranks at work", log.read_text(errors="replace"))
    os.kill(int(victims[-1]), signal.SIGKILL)
    began = time.monotonic()
    process.finish(seconds=30)
    if others_live:
        expect_words(log.read_text(errors="replace"), r"rank \d of 3 was lost: its process \d+ ended without leaving",
                     r"all_reduce #\d+ \(3.91 KiB, [^)]*\)")
    shown(f"{name}: a rank killed, all ended after", time.monotonic() - began)


def never_calls(name, words):
    command, variables = ranks(words, "never_calls")
    code, output, seconds = run(command, env=variables)
    expect(code != 0, f"{name}: an exit code that says that something went wrong", output)
    expect_words(output, r"after 1s: rank 2 never called all_reduce #2 \(bucket 2, 3.91 KiB, [^)]*\)",
                 r"\) that ranks 0, 1 wait in")
    shown(f"{name}: a rank that never calls", seconds)


def dies_early(name, words):
    command, variables = ranks(words, "dies_early", STAYS_LONGER)
    _, output, seconds = run(command, env=variables)
    expect_words(output, r"lost: mpirun's rank 0, which serves the store, was lost: its process \d+ ended")
    shown(f"{name}: rank 0 lost before it serves the store", seconds)


def ends_late(name, words):
    """MPI itself reports a rank that did not wait."""
    command, variables = ranks(words, "ends_late")
    code, output, seconds = run(command, env=variables)
    expect(code == 0, f"{name}: exit code {code}", output)
    shown(f"{name}: a rank that others timed out on, and that ends late", seconds)


def main():
    found = {name: words for name, words in LAUNCHERS.items() if shutil.which(words[0])}
    built = {name for name in LAUNCHERS if (build_folder() / "lib" / f"lockstep_mpi_{name.lower()}.so").exists()}
    for name in LAUNCHERS:
        if name not in found or name not in built:
            print(f"{name} is not installed, or was not when this was built")
    usable = [name for name in found if name in built]
    if not usable:
        skip("no MPI (packages libopenmpi-dev and openmpi-bin, or libmpich-dev and mpich)")
    faults = {name: why_no_world(found[name], program(f"mpi_world_{name.lower()}"), environment(**ROOT))
              for name in usable}
    print(*(f"{name} is left out: {why}" for name, why in faults.items() if why), sep="\n")
    usable = [name for name in usable if not faults[name]]
    if not usable:
        skip("; ".join(faults.values()))
    for name in usable:
        with tempfile.TemporaryDirectory(prefix="lockstep-mpi-") as folder:
            log = pathlib.Path(folder) / "log"
            killed(name, [*found[name], *RECOVERY.get(name, [])], log, others_live=name in RECOVERY)
            killed(f"{name}, through a shell", found[name], log, STAYS_LONGER)
        never_calls(name, found[name])
        dies_early(name, found[name])
        ends_late(name, found[name])


if __name__ == "__main__":
    try:
        main()
    finally:
        end_all()
