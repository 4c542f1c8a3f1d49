#!/usr/bin/env python3
"""lockstep run over several hosts: network namespaces with their own addresses on one bridge.

The script restarts itself in its own network and mount namespace, so that everything it makes disappears with it.
"""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from relay import Relay
from support import Process, end_all, environment, example, expect, expect_words, fail, lockstep, python, shown, skip

HOSTS = 3
PORT = 29400
INSIDE = "LOCKSTEP_TEST_IN_NAMESPACE"


def enter_namespace():
    """Returns only inside the namespaces; skips the test if they are not allowed."""
    if os.environ.get(INSIDE):
        return
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed (packages util-linux, iproute2)")
    words = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    made = subprocess.run([*words, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"network namespaces are not allowed here: {made.stderr.strip()}")
    os.execvpe(words[0], [*words, sys.executable, *sys.argv], os.environ | {INSIDE: "1"})


def shell(line):
    done = subprocess.run(["sh", "-ec", line], capture_output=True, text=True)
    expect(done.returncode == 0, line, done.stderr)


def address(host):
    return f"10.77.0.{host + 1}"


def make_hosts(folder):
    """Makes namespaces with eth0 on one bridge; the relay uses the bridge's own address."""
    shell("ip link set lo up; ip link add br0 type bridge; ip addr add 10.77.0.254/24 dev br0; ip link set br0 up")
    for host in range(HOSTS):
        handle = folder / f"host{host}"
        handle.touch()
        shell(f"unshare --net={handle} true;"
              f"ip link add out{host} type veth peer name eth0 netns {handle}; ip link set out{host} master br0 up;"
              f"nsenter --net={handle} sh -ec 'ip link set lo up; ip addr add {address(host)}/24 dev eth0;"
              f"ip link set eth0 up'")


@contextlib.contextmanager
def folder_of_hosts(prefix):
    """Makes a folder for a Cluster. On exit, every process is ended and every namespace is removed."""
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        folder = pathlib.Path(name)
        try:
            yield folder
        finally:
            end_all()
            for handle in folder.glob("host*"):
                subprocess.run(["umount", str(handle)], capture_output=True)


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_bytes(os.urandom(32))
        self.secret.chmod(0o600)
        make_hosts(folder)

    def agent(self, host, nodes, ranks, program, *options, rendezvous=f"{address(0)}:{PORT}"):
        words = ["--nnodes", str(nodes), "--node-rank", str(host), "--rendezvous", rendezvous, "--secret-file",
                 str(self.secret), "--join-timeout", "20s", "-n", str(ranks), *options, *program]
        return Process(["nsenter", f"--net={self.folder}/host{host}", lockstep(), "run", *words],
                       env=environment(GLOO_SOCKET_IFNAME="eth0"))

    def elastic_agent(self, host, store, program, *options):
        """Starts an agent that may come and go; the store runs separately."""
        words = ["--nnodes", f"1:{HOSTS}", "--store", store, "--secret-file", str(self.secret)]
        words += ["--join-timeout", "20s", "--lost-after", "3s", *options, *program]
        return Process(["nsenter", f"--net={self.folder}/host{host}", lockstep(), "run", *words],
                       env=environment(GLOO_SOCKET_IFNAME="eth0"))

    def agents(self, ranks, program, *options, **more):
        return [self.agent(host, len(ranks), count, program, *options, **more) for host, count in enumerate(ranks)]


def finish_well(what, agents, *words):
    together = ""
    for agent in agents:
        code, output, seconds = agent.finish()
        expect(code == 0, f"{what}: exit code {code}", output)
        together += output
    expect_words(together, *words)
    shown(what, seconds)


def expect_ends(what, agents, codes, words, since, at_most):
    """Expects that each remaining agent soon ends with its code and its words."""
    for agent, code, expected in zip(agents, codes, words):
        if code is None:
            continue
        found, output, _ = agent.finish(20)
        expect(found == code, f"{what}: expected exit code {code}, found {found}", output)
        expect_words(output, *expected)
    took = time.monotonic() - since
    expect(took < at_most, f"{what}: {took:.1f} s")
    shown(what, took)


def wait_for_ranks(folder, count):
    end = time.monotonic() + 20
    while len(list(folder.glob("rank*"))) < count:
        expect(time.monotonic() < end, "the ranks did not start within 20 s")
        time.sleep(0.02)
    for mark in folder.glob("rank*"):
        mark.unlink()


def sleeper(folder):
    return ["sh", "-c", f"touch {folder}/rank$RANK; echo rank $RANK is here; exec sleep 60"]


def train(cluster):
    hello = [example("01_hello_ranks")]
    finish_well("hello on three hosts, 2 + 1 + 1 ranks", cluster.agents([2, 1, 1], hello),
                *[f"hello from rank {rank} of 4 on backend hierarchical" for rank in range(4)])
    in_python = start_python(cluster)  # another run, at the same time
    finish_well("DDP on two hosts", cluster.agents([1, 1], [example("04_your_own_model")]), "final loss 0.000")
    if in_python:
        finish_well("a Python program on two hosts", in_python, r"\[rank 0\] sum 3.0", r"\[rank 1\] sum 3.0")


def start_python(cluster):
    if python() is None:
        return print("no Python with torch: set LOCKSTEP_PYTHON")
    script = ("import torch, torch.distributed as d; d.init_process_group('gloo');"
              "t = torch.ones(3) * (d.get_rank() + 1); d.all_reduce(t);"
              "print('sum', t[0].item(), flush=True); d.destroy_process_group()")
    return cluster.agents([1, 1], [python(), "-c", script], rendezvous=f"{address(0)}:{PORT + 1}")


def fail_and_see(cluster, folder):
    script = (f"touch {folder}/rank$RANK; [ $RANK != 1 ] || {{ echo I give up >&2; sleep 0.3; exit 7; }};"
              "exec sleep 60")
    agents = cluster.agents([1, 1, 1], ["sh", "-c", script])
    wait_for_ranks(folder, 3)
    cause = [r"rank 1 of 3 \(node 1, host .*\) ended with exit code 7", r"  \| I give up"]
    expect_ends("a rank fails", agents, [7, 7, 7], [cause] * 3, time.monotonic(), 5)


def kill_an_agent(cluster, folder):
    agents = cluster.agents([1, 1, 1], sleeper(folder))
    wait_for_ranks(folder, 3)
    since = time.monotonic()
    agents[1].process.kill()
    gone = [r"node 1 \(host .*\) has failed: its agent is gone: it was killed"]
    expect_ends("an agent is killed", agents, [1, None, 1], [gone] * 3, since, 5)


def cut_a_link(cluster, folder):
    agents = cluster.agents([1, 1], sleeper(folder), "--lost-after", "3s")
    wait_for_ranks(folder, 2)
    since = time.monotonic()
    shell("ip link set out1 down")
    expect_ends("a link is cut", agents, [1, 1],
                [[r"node 1 \(host .*\) has failed: its agent (is gone|has not answered)"],
                 [r"node 0 \(host .*\) has failed: its agent, .* store, (is gone|has not answered)"]], since, 10)
    shell("ip link set out1 up")


def relay_with_delay(cluster, folder):
    relay = Relay("10.77.0.254", PORT, (address(0), PORT), delay=0.05)
    agents = [cluster.agent(0, 2, 1, sleeper(folder)),
              cluster.agent(1, 2, 1, sleeper(folder), rendezvous=f"10.77.0.254:{PORT}")]
    wait_for_ranks(folder, 2)
    expect(relay.passed > 1000, "nothing went over the relay")
    since = time.monotonic()
    relay.cut()
    expect_ends("a relay with 50 ms delay is cut", agents, [1, 1],
                [[r"node 1 \(host .*\) has failed"], [r"node 0 \(host .*\) has failed"]], since, 6)


def go_on_without_hosts(cluster, folder):
    """An agent is killed, a link is cut, a host comes back; the store runs separately."""
    at = f"10.77.0.254:{PORT + 2}"
    store = Process([lockstep(), "store", "--listen", at, "--secret-file", str(cluster.secret),
                     "--log", f"{folder}/store.log"])
    hello = example("01_hello_ranks")
    script = (f"{hello} || exit 1; touch {folder}/rank$LOCKSTEP_ROUND.$RANK;"
              f"while [ ! -e {folder}/over ]; do sleep 0.05; done")
    agents = [cluster.elastic_agent(host, at, ["sh", "-c", script], "--max-restarts", "9") for host in range(HOSTS)]
    wait_for_ranks(folder, 3)
    since = time.monotonic()
    agents[1].process.kill()
    wait_for_ranks(folder, 2)
    shown("two hosts go on without a third one, whose agent was killed", time.monotonic() - since)
    since = time.monotonic()
    shell("ip link set out2 down")
    wait_for_ranks(folder, 1)
    shown("one host goes on without another one, whose link was cut", time.monotonic() - since)
    agents[1] = cluster.elastic_agent(1, at, ["sh", "-c", script], "--max-restarts", "9")
    wait_for_ranks(folder, 2)
    shell("ip link set out2 up")
    code, output, _ = agents[2].finish()
    expect(code == 1, f"the host that was cut off: exit code {code}", output)
    expect_words(output, "the other nodes have excluded this one")
    (folder / "over").touch()
    for agent in (agents[0], agents[1]):
        code, output, _ = agent.finish()
        expect(code == 0, f"exit code {code}", output)
    expect_words(output, "hello from rank . of 2 on backend (gloo|hierarchical)")
    store.kill()


def limit_rate():
    """Slows the links, if the kernel has the queueing discipline."""
    done = subprocess.run("tc qdisc add dev out0 root tbf rate 200mbit burst 256k latency 100ms", shell=True,
                          capture_output=True, text=True)
    print("links of 200 Mbit/s" if done.returncode == 0 else f"links at full speed: {done.stderr.strip()}")


def main():
    enter_namespace()
    if not os.access(lockstep(), os.X_OK):
        fail("the build has no lockstep")
    with folder_of_hosts("lockstep-hosts-") as folder:
        cluster = Cluster(folder)
        limit_rate()
        fail_and_see(cluster, folder)
        kill_an_agent(cluster, folder)
        cut_a_link(cluster, folder)
        relay_with_delay(cluster, folder)
        go_on_without_hosts(cluster, folder)
        train(cluster)


if __name__ == "__main__":
    main()
