#!/usr/bin/env python3
"""Elastic training with failures beyond a rank: the store, the memory for commits, the disk, a host, a link.

Each run ends with the same bytes in model.safetensors as an undisturbed run. Hosts are network namespaces, and full
disks are small file systems in memory: the script restarts itself in its own namespaces, if it is allowed to.
"""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from elastic_support import expect_the_same, kill_one, model_of, train_program, training, wait_for, workers_of
from several_hosts_test import HOSTS, PORT, Cluster, address, enter_namespace, shell
from support import Process, end_all, environment, expect, expect_words, lockstep, run, shown

STEPS = 600


def of_run(folder, name, *more):
    return training(folder, name, STEPS, *more, every=100)


def start(folder, name, *more, run_options=(), **variables):
    words = [lockstep(), "run", "-n", "2", "--max-restarts", "9", *run_options, train_program()]
    return Process([*words, *of_run(folder, name, *more)], env=environment(**variables))


def finish_as_calm(folder, name, process, what, *words):
    code, output, seconds = process.finish(150)
    expect(code == 0, f"{what}: exit code {code}", output)
    expect_words(output, *words)
    expect_the_same(folder, name, what, output)
    shown(f"{what}: the same bytes", seconds)


def small_disk(place, size):
    place.mkdir()
    shell(f"mount -t tmpfs -o size={size} none {place}")
    return place


def no_room_for_commits(folder):
    """/dev/shm is full: the run reports it, and goes back to its newest checkpoint."""
    commits = small_disk(folder / "commits", "64k")
    process = start(folder, "memoryless", LOCKSTEP_COMMITS=str(commits))
    wait_for(folder / "memoryless" / "step-00000100")
    expect(kill_one(process.process), "no rank could be killed")
    finish_as_calm(folder, "memoryless", process, "no room for commits, and a rank killed",
                   "this host keeps no state in memory any more", r"goes on at step [1-5]00 of")


def no_room_for_checkpoints(folder):
    """The disk of --out is full until a rank is lost."""
    disk = small_disk(folder / "disk", "4m")
    filler, rest = disk / "filler", disk / "rest"
    filler.write_bytes(bytes((4 << 20) - (200 << 10)))
    (folder / "full").symlink_to(disk / "run")
    (disk / "run").mkdir()
    process = start(folder, "full", "--on-save-error", "go-on")
    wait_for_line(process, "No space left|no space left|expected .* free")
    with rest.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass  # until no block is left
    expect(kill_one(process.process), "no rank could be killed")
    wait_for_line(process, r"round 1: goes on at step")
    filler.unlink()
    rest.unlink()
    finish_as_calm(folder, "full", process, "a full disk, and a rank killed", r"goes on at step [1-9]")
    expect((disk / "run" / "LATEST").exists(), "no checkpoint once there was room")


def wait_for_line(process, pattern, seconds=60):
    end = time.monotonic() + seconds
    while not any(re.search(pattern, line) for line in process.lines):
        expect(time.monotonic() < end and process.reader.is_alive(), f"no '{pattern}' in", "".join(process.lines))
        time.sleep(0.01)


class Store:
    """lockstep store, on the bridge that all hosts reach, or on the last host."""

    def __init__(self, cluster, port, on_host=False):
        self.at = f"{address(HOSTS - 1)}:{port}" if on_host else f"10.77.0.254:{port}"
        place = ["nsenter", f"--net={cluster.folder}/host{HOSTS - 1}"] if on_host else []
        self.words = [*place, lockstep(), "store", "--listen", self.at, "--secret-file", str(cluster.secret),
                      "--log", f"{cluster.folder}/store{port}.log"]
        self.process = Process(self.words)

    def kill_and_start_anew(self):
        self.process.kill()
        self.process.finish(10)
        self.process = Process(self.words)


def host(cluster, number, store, folder, name, *options, lost_after="6s"):
    """An agent with two ranks and its own memory."""
    memory = folder / f"{name}-memory{number}"
    memory.mkdir(exist_ok=True)
    words = [lockstep(), "run", "-n", "2", "--nnodes", "1:2", "--store", store.at, "--secret-file",
             str(cluster.secret), "--join-timeout", "60s", "--lost-after", lost_after, "--max-restarts", "9",
             *options]
    return Process(["nsenter", f"--net={cluster.folder}/host{number}", *words, train_program(),
                    *of_run(folder, name)],
                   env=environment(GLOO_SOCKET_IFNAME="eth0", LOCKSTEP_COMMITS=str(memory)))


def store_killed(cluster, folder):
    store = Store(cluster, PORT + 5)
    agent = host(cluster, 0, store, folder, "storeless")
    wait_for(folder / "storeless" / "step-00000100")
    store.kill_and_start_anew()
    expect(kill_one(agent.process), "no rank could be killed")
    finish_as_calm(folder, "storeless", agent, "the store killed and started anew, then a rank killed",
                   "round 1 begins")
    store.process.kill()


def store_cut(cluster, folder):
    """The host of two stores is cut off for longer than --lost-after: a run on one node and one on two go on."""
    runs = []
    for nodes in (1, 2):
        name = f"storecut{nodes}"
        store = Store(cluster, PORT + 7 + nodes, on_host=True)
        agents = [host(cluster, number, store, folder, name, lost_after="3s") for number in range(nodes)]
        runs.append((name, store, agents))
    for name, _, _ in runs:
        wait_for(folder / name / "step-00000100")
    shell(f"ip link set out{HOSTS - 1} down")
    time.sleep(6)
    shell(f"ip link set out{HOSTS - 1} up")
    for name, store, agents in runs:
        for agent in agents:
            code, output, _ = agent.finish(150)
            expect(code == 0 and "has left" not in output, f"{name}: exit code {code}", output)
        finish_as_calm(folder, name, agents[0], f"the store cut off from {len(agents)} node(s)")
        store.process.kill()


def host_with_rank_0(agents):
    """Returns which of two agents has shown a line of rank 0, and the other one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for number, agent in enumerate(agents):
            if any(line.startswith("[rank 0] step") for line in agent.lines):
                return number, 1 - number
        time.sleep(0.02)
    expect(False, "no line of rank 0 within 60 s", "".join(agents[0].lines + agents[1].lines))


def host_lost(cluster, folder):
    """A whole host is lost at once: its agent, its ranks (including rank 0) and its memory."""
    store = Store(cluster, PORT + 6)
    agents = [host(cluster, number, store, folder, "lost") for number in (0, 1)]
    wait_for(folder / "lost" / "step-00000100")
    victim, other = host_with_rank_0(agents)
    ranks = workers_of(agents[victim].process)
    expect(len(ranks) == 2, f"expected 2 ranks of the host, found {len(ranks)}")
    for process in (agents[victim].process.pid, *ranks):
        os.kill(process, signal.SIGKILL)
    shell(f"rm -rf {folder}/lost-memory{victim}/*")
    finish_as_calm(folder, "lost", agents[other], "a host lost with all of its ranks",
                   r"round 1: goes on at step [1-9]\d* of \d+ on 2 ranks")
    store.process.kill()


def link_cut(cluster, folder):
    """The host without rank 0 is cut off: rank 0 keeps the run's folder, which both hosts can reach here."""
    store = Store(cluster, PORT + 7)
    agents = [host(cluster, number, store, folder, "cut") for number in (0, 1)]
    wait_for(folder / "cut" / "step-00000100")
    other, victim = host_with_rank_0(agents)
    shell(f"ip link set out{victim} down")
    finish_as_calm(folder, "cut", agents[other], "a host cut off", r"round \d+: goes on at step [1-9]\d* of")
    shell(f"ip link set out{victim} up")
    agents[victim].kill()
    store.process.kill()


def wait_for_step(folder, name, step, seconds=60):
    metrics = folder / name / "metrics.jsonl"
    end = time.monotonic() + seconds
    while True:
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        if rows and json.loads(rows[-1])["step"] >= step:
            return
        expect(time.monotonic() < end, f"no step {step} in {metrics}")
        time.sleep(0.02)


def node_joins(cluster, folder):
    """A node joins a run whose hosts have no room for commits: it saves a checkpoint first, and no step is lost."""
    store = Store(cluster, PORT + 10)
    for number in (0, 1):
        small_disk(folder / f"joined-memory{number}", "64k")
    first = host(cluster, 0, store, folder, "joined", "--last-call", "0s")
    wait_for_step(folder, "joined", 155)
    second = host(cluster, 1, store, folder, "joined", "--last-call", "0s")
    finish_as_calm(folder, "joined", first, "no room for commits, and a node joins",
                   "this host keeps no state in memory any more", "round 0 ends: nodes join",
                   r"round 1: goes on at step \d+ of \d+ on 4 ranks", r"lost_steps=0\b")
    code, output, _ = second.finish(60)
    expect(code == 0, f"the node that joined: exit code {code}", output)
    store.process.kill()


def main():
    enter_namespace()
    with tempfile.TemporaryDirectory(prefix="lockstep-failures-") as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("abacus banana cab " * 300)
        (folder / "hosts").mkdir()
        try:
            cluster = Cluster(folder / "hosts")
            code, output, _ = run([lockstep(), "train", *of_run(folder, "calm", "--ranks", "2")], seconds=150)
            expect(code == 0 and model_of(folder, "calm"), f"undisturbed: exit code {code}", output)
            no_room_for_commits(folder)
            no_room_for_checkpoints(folder)
            store_killed(cluster, folder)
            store_cut(cluster, folder)
            host_lost(cluster, folder)
            link_cut(cluster, folder)
            node_joins(cluster, folder)
        finally:
            end_all()
            for mounted in (*folder.glob("hosts/host*"), folder / "commits", folder / "disk",
                            *folder.glob("joined-memory*")):
                subprocess.run(["umount", "-l", str(mounted)], capture_output=True)


if __name__ == "__main__":
    main()
