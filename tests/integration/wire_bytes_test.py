#!/usr/bin/env python3
"""The bytes that sums over ranks on several hosts send, by the counters of the hosts' network interfaces.

The hosts are the namespaces of several_hosts_test.py; the ranks run tests/apps/programs/wire_bytes.cc.
"""
import re
import shutil

import several_hosts_test
from several_hosts_test import Cluster, address, enter_namespace, folder_of_hosts
from support import Process, build_folder, environment, expect, expect_words, shown, skip, why_no_world

HOSTS = 4
NUMBERS = 4_000_000  # 16 MB in float32
HEADERS = 1.05  # for messages and packets
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BLOCK = 1024  # numbers that share a scale in int8
# Starts a command on a host that has its own name, as ssh would: "agent ADDRESS WORDS...".
AGENT = """#!/bin/sh
number=$((${1##*.} - 1))
shift
exec nsenter --net=FOLDER/host$number unshare --uts --mount sh -c \\
  "mount --bind FOLDER/hosts /etc/hosts; hostname host$number; $*"
"""


def program(name="wire_bytes"):
    path = build_folder() / "tests/programs" / name
    if not path.exists():
        skip(f"the build has no program {name}")
    return str(path)


def measured(what, processes):
    """Returns {"all_reduce float32": bytes, ...} for the host that sent most, and the same counted by traffic()."""
    together, seconds = "", 0
    for process in processes:
        code, output, seconds = process.finish(120)
        expect(code == 0, f"{what}: exit code {code}", output)
        together += output
    expect_words(together, r"ranks \d backend")
    shown(what, seconds)
    lines = re.findall(r"(\w+ \w+\d) (\d+) (\d+)$", together, re.MULTILINE)
    for way, number, counted in lines:
        print(f"  {way:24} {int(number) / 2**20:8.2f} MiB, {int(number) / NUMBERS:6.3f} a number, "
              f"{int(counted) / NUMBERS:6.3f} counted")
    return {way: int(number) for way, number, _ in lines}, {way: int(counted) for way, _, counted in lines}


def measure(cluster, backend, ranks):
    """Measures; `ranks` is the number of ranks per host."""
    what = f"{backend}, hosts with {', '.join(map(str, ranks))} ranks"
    agents = cluster.agents(ranks, ["env", f"LOCKSTEP_BACKEND={backend}", program(), str(NUMBERS)])
    compare(what, *measured(what, agents), ranks)


def measure_mpi(folder, hosts):
    """Measures Open MPI over TCP."""
    launcher = shutil.which("mpirun.openmpi")
    if launcher is None or not (build_folder() / "lib/lockstep_mpi_openmpi.so").exists():
        return print("mpi is left out: no Open MPI, or there was none when this was built")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env = environment(LOCKSTEP_BACKEND="mpi", **root)
    if why := why_no_world([launcher, "--oversubscribe"], program("mpi_world_openmpi"), env):
        return print(f"mpi is left out: {why}")
    (folder / "hosts").write_text("".join(f"{address(host)} host{host}\n" for host in range(hosts)))
    agent = folder / "agent"
    agent.write_text(AGENT.replace("FOLDER", str(folder)))
    agent.chmod(0o700)
    settings = {"plm_rsh_agent": agent, "oob_tcp_if_include": "10.77.0.0/24", "pml": "ob1", "btl": "tcp,self",
                "btl_tcp_if_include": "10.77.0.0/24"}
    words = [launcher, "--oversubscribe", "-n", str(hosts), "-x", "LOCKSTEP_BACKEND", "-x", "LOCKSTEP_ARENA"]
    words += ["--host", ",".join(f"{address(host)}:1" for host in range(hosts))]
    words += [str(word) for name, value in settings.items() for word in ("--mca", name, value)]
    what = f"mpi, {hosts} hosts"
    compare(what, *measured(what, [Process([*words, program(), str(NUMBERS)], env=env)]), [1] * hosts)


def expect_at_most(what, sent, way, formula):
    expect(sent[way] <= formula * HEADERS, f"{what}: {way} sent {sent[way]} bytes, expected at most {formula:.0f}")


def compare_counts(what, sent, counted):
    for way, number in counted.items():
        expect(sent[way] >= number, f"{what}: {way} sent {sent[way]} bytes, and Group::traffic() counts {number}")
        if not (what.startswith("gloo") and way == "reduce float32"):  # Gloo's ring sends up to 1.4 times as much
            expect_at_most(what, sent, way, number)


def compare(what, sent, counted, ranks):
    """Checks that sixteen bits cost half of float32, that sums cost the bytes of docs/reference/collectives.md, that
    int8 costs those of diloco.h, and that Group::traffic() counts the bytes that hosts of one rank send.
    """
    for way in ("all_reduce", "reduce_scatter", "reduce"):
        for dtype in ("bfloat16", "float16"):
            share = sent[f"{way} {dtype}"] / sent[f"{way} float32"]
            expect(share <= 0.55, f"{what}: {way} in {dtype} sent {share:.3f} of what float32 did")
    if max(ranks) == 1:
        compare_counts(what, sent, counted)
    others = (len(ranks) - 1) / len(ranks)
    for dtype, size in BYTES.items():
        expect_at_most(what, sent, f"all_reduce {dtype}", 2 * others * NUMBERS * size)
    expect_at_most(what, sent, "DiLoCo float32", 2 * others * NUMBERS * 4)
    copies = 2 * others
    if len(set(ranks)) > 1:  # every rank sends for itself; then the hosts gather the results of their ranks
        most, every = max(ranks), sum(ranks)
        copies = most * (every - most) / every + (len(ranks) - 1) * most / every
    expect_at_most(what, sent, "DiLoCo int8", copies * (NUMBERS + 4 * NUMBERS / BLOCK))


def main():
    enter_namespace()
    several_hosts_test.HOSTS = HOSTS
    with folder_of_hosts("lockstep-bytes-") as folder:
        cluster = Cluster(folder)
        measure(cluster, "gloo", [1, 1])
        measure(cluster, "gloo", [1, 1, 1, 1])
        measure(cluster, "hierarchical:gloo", [2, 2])
        measure(cluster, "hierarchical:gloo", [2, 1, 1])
        measure_mpi(folder, 2)


if __name__ == "__main__":
    main()
