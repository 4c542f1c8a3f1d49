#!/usr/bin/env python3
"""Checks `lockstep train`, `eval` and `generate` on a GPU, with ranks that share it, against one process on the CPU.

    gpu_train.py BIN OUT [DEVICE]    BIN: folder of the programs; OUT: an empty folder for runs and logs;
                                     DEVICE: cuda (the default), or cpu to try this script

Prints one line per check. Exits with 1 if one failed. NAME.out and NAME.err in OUT have the output of each command.
"""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import typing

CIFAR = "--width 8 --batch 32 --lr 0.005 --steps 6 --eval-every 3"
LANGUAGE_MODEL = "--layers 2 --heads 4 --width 64 --block 32 --batch 8 --eval-batches 1 --warmup 2 --peak-tflops 100"
SHORT = "--steps 12 --eval-every 4 --save-every 6 --keep-checkpoints 0"
LONG = "--steps 120 --eval-every 40 --save-every 20"
HALF = 50   # the step of a long run at which it is stopped, or one of its ranks is killed
COMMAND_SECONDS = 75
ALL_SECONDS = {"cuda": 240, "cpu": 900}
PROMPT = "the "


class Way(typing.NamedTuple):
    """A training whose losses must be near those of one process on the CPU."""
    name: str
    options: str = ""
    ranks: int = 1
    task: str = "gpt"
    tolerance: float = 1e-3   # relative
    compares_ranks: bool = False   # with the same ranks on the CPU, because their number changes the losses

    def arguments(self, device):
        ranks = f"--ranks {self.ranks}" if self.ranks > 1 else ""
        return f"--device={device if self.name != 'servers' else ''} {ranks} {self.options}"

    def reference(self):
        if self.compares_ranks:
            return self._replace(name=f"cpu_{self.name}")
        return Way(f"cpu_{self.task}", task=self.task)


WAYS = [
    Way("one"), Way("ddp", ranks=2), Way("threads", "--strategy threads --devices 1"),
    Way("optimizer", "--shard optimizer", 2), Way("gradients", "--shard gradients", 2), Way("full", "--shard full", 2),
    Way("fsdp", "--mesh fsdp=2", 2), Way("tp", "--mesh tp=2", 2), Way("pp", "--mesh pp=2 --accumulate 2", 2),
    Way("cp", "--mesh cp=2", 2), Way("moe", task="moe"), Way("moe_ddp", ranks=2, task="moe"),
    Way("moe_ep", "--mesh ep=2", 2, "moe"), Way("moe_dp_ep", "--mesh dp=2,ep=2", 4, "moe"),
    Way("local_sgd", "--local-sgd 2", 2, compares_ranks=True), Way("diloco", "--diloco 3", 2, compares_ranks=True),
    Way("bf16", "--precision bf16", tolerance=3e-2), Way("bf16_ddp", "--precision bf16", 2, tolerance=3e-2),
    Way("bf16_full", "--precision bf16 --shard full", 2, tolerance=3e-2),
    Way("fp16_full", "--precision fp16 --shard full", 2, tolerance=3e-2),
    Way("hook_bf16", "--hook bf16", 2, tolerance=3e-2),
    Way("sequence_parallel", "--mesh tp=2 --sequence-parallel", 2),
    Way("ulysses", "--mesh cp=2 --context-method ulysses", 2),
    Way("zb_h1", "--mesh pp=2 --accumulate 4 --pipeline zb-h1", 2),
    Way("dp_fsdp", "--mesh dp=2,fsdp=2", 4), Way("pp_tp", "--mesh pp=2,tp=2 --accumulate 2", 4),
    Way("recomputed", "--shard full --activation-checkpoint-every 1", 2),
    Way("activation_offload", "--activation-checkpoint-every 1 --activation-offload"),   # refused on the CPU
    Way("offload", "--shard full --offload OUT/offloaded", 2), Way("deferred", "--shard full --deferred-init", 2),
    Way("async_save", "--async-save", 2), Way("elastic", "--elastic", 2),
    Way("servers", "--strategy ps --workers 2", 3), Way("llama_tp", "--mesh tp=2", 2, "llama"),
    Way("cifar", task="cifar"), Way("cifar_ddp", "--sync-batch-norm", 2, "cifar"),
]


class Failed(Exception):
    pass


def expect(condition, reason):
    if not condition:
        raise Failed(reason)


def write_data(out):
    """Writes a text, and images in the format of CIFAR-10 whose brightness tells their class."""
    random.seed(1)
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(2, 7))) for _ in range(60)] + ["the"] * 6
    (out / "text.txt").write_text("".join(random.choice(words) + random.choice("    \n") for _ in range(12000)))
    for folder in ("images", "offloaded"):
        (out / folder).mkdir()
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        records = [bytes([label, *random.choices(range(20 * label, 20 * label + 60), k=3 * 32 * 32)])
                   for label in random.choices(range(10), k=64)]
        (out / "images" / f"{name}.bin").write_bytes(b"".join(records))


def compare(found, expected, tolerance):
    """Compares the losses and validation losses of two runs."""
    steps = [[row["step"] for row in rows] for rows in (found, expected)]
    expect(steps[0] == steps[1], f"expected rows of steps {steps[1]}, found {steps[0]}")
    pairs = [(a.get(name), b[name]) for a, b in zip(found, expected) for name in ("loss", "val_loss") if name in b]
    expect(all(a is not None for a, _ in pairs), "a loss is NaN, or a validation loss is missing")
    largest = max(abs(a - b) / abs(b) for a, b in pairs)
    expect(largest <= tolerance, f"losses differ by {largest:.1e}, at most {tolerance:.0e}")
    return f"losses differ by {largest:.1e}"


def process_of_rank(rank, parent):
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            is_child = int(stat[stat.rindex(") ") + 2:].split()[1]) == parent
            if is_child and f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue  # it has just ended
    return None


class Checks:
    def __init__(self, programs, out, device):
        self.programs, self.out, self.device = programs, out, device
        self.end = time.monotonic() + ALL_SECONDS[device]
        self.pool = concurrent.futures.ThreadPoolExecutor(4 if device == "cuda" else 1)
        self.jobs = {}

    def add(self, name, job, *arguments):
        self.jobs[name] = self.pool.submit(job, *arguments)

    def rows_after(self, name):
        """Waits for an earlier check, and returns the measurements of its run."""
        expect(self.jobs[name].exception() is None, f"needs {name}, which failed")
        return self.rows(name)

    def rows(self, name):
        file = self.out / name / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]   # a run may be writing the last one

    def start(self, name, *words):
        expect(time.monotonic() < self.end, "not run, because the time is over")
        environment = dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_SHARE_GPUS="1", TERM="dumb",
                           NVIDIA_TF32_OVERRIDE="0")   # cuDNN would convolve float32 in TF32
        with open(self.out / f"{name}.out", "w") as out, open(self.out / f"{name}.err", "w") as errors:
            return subprocess.Popen([self.programs / "lockstep", *words], stdin=subprocess.DEVNULL, stdout=out,
                                    stderr=errors, env=environment, start_new_session=True)

    def finish(self, name, process, expected=0):
        """Returns the standard output of the command."""
        try:
            code = process.wait(max(1, min(COMMAND_SECONDS, self.end - time.monotonic())))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = f"a timeout, and {process.wait()}"
        said, errors = ((self.out / f"{name}.{end}").read_text(errors="replace") for end in ("out", "err"))
        lines = (errors.strip() or said.strip()).splitlines()
        expect(code == expected, f"{name} ended with {code}: {' | '.join(lines[-3:])}")
        return said

    def run(self, name, *words):
        return self.finish(name, self.start(name, *words))

    def training(self, name, options="", task="gpt", length=SHORT):
        """Returns the arguments of a training in the folder `name`."""
        data = self.out / ("images" if task == "cifar" else "text.txt")
        model = CIFAR if task == "cifar" else f"{LANGUAGE_MODEL} {length}"
        words = f"{model} --log-every 1 --threads 1 {options.replace('OUT', str(self.out))}".split()
        return [task, "--data", str(data), "--out", str(self.out / name), *words]

    def plain(self, name, *arguments):
        self.run(name, "train", *self.training(name, *arguments))
        return f"losses from {self.rows(name)[0]['loss']:.4f} to {self.rows(name)[-1]['loss']:.4f}"

    def way(self, way):
        self.plain(way.name, way.arguments(self.device), way.task)
        rows = self.rows(way.name)
        expect(self.device == "cpu" or way.name == "servers" or rows[-1].get("device_allocated_bytes", 0) > 0,
               "metrics.jsonl has no memory of the device")
        return compare(rows, self.rows_after(way.reference().name), way.tolerance)

    def figures(self):
        """A run without --device, which uses the GPU if it sees one. It also shows how far the bits repeat."""
        self.plain("figures")
        last = self.rows("figures")[-1]
        names = ["mfu"] + ["device_allocated_bytes", "device_reserved_bytes"] * (self.device == "cuda")
        expect(all(last.get(name, 0) > 0 for name in names), f"expected {names} in {last}")
        shown = ", ".join(f"{name} {last[name]:.3g}" for name in names)
        return f"{shown}; {compare(self.rows('figures'), self.rows_after('one'), 1e-4)}"

    def trace(self):
        file = self.out / "trace.json"
        self.plain("trace", f"--device {self.device} --trace {file} --trace-steps 4")
        events = json.loads(file.read_text())["traceEvents"]
        names = {event.get("name") for event in events}
        expect({"data", "forward", "backward", "update"} <= names, "the trace lacks spans of the phases")
        kernels, copies = (sum(event.get("cat") == cat for event in events) for cat in ("kernel", "gpu_memcpy"))
        expect(self.device == "cpu" or kernels > 0, "the trace has no kernels")
        return f"{len(events)} events, {kernels} kernels, {copies} copies"

    def resumed(self):
        """Continues a copy of the run from its checkpoint of step 6."""
        expected = self.rows_after("one")
        shutil.copytree(self.out / "one", self.out / "resumed")
        self.run("resumed", "train", "gpt", "--out", str(self.out / "resumed"), "--resume-from", "step-00000006")
        return compare(self.rows("resumed"), expected, 1e-6)

    def evaluated(self, device):
        expected = self.rows_after("one")[-1]["val_loss"]
        said = self.run(f"eval_{device}", "eval", str(self.out / "one"), "--device", device)
        found = float(re.search(r"val_loss=(\S+)", said)[1])
        expect(abs(found - expected) < 1e-3 * expected, f"expected val_loss={expected}, found {found}")
        return f"val_loss={found}, the run's {expected:.6f}"

    def generated(self, device):
        self.rows_after("one")
        text = self.run(f"generate_{device}", "generate", str(self.out / "one"), "--device", device,
                        "--prompt", PROMPT, "--tokens", "40")
        expect(text.startswith(PROMPT) and len(text) >= len(PROMPT) + 40, f"found the text {text!r}")
        return repr(text)

    def started_until_half(self, name, *words):
        process = self.start(name, *words)
        end = time.monotonic() + COMMAND_SECONDS
        while len(self.rows(name)) < HALF and process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        return process

    def stopped(self):
        """Stops a run by SIGTERM, and resumes it."""
        words = self.training("stopped", f"--device {self.device}", length=LONG)
        process = self.started_until_half("stopped", "train", *words)
        process.terminate()
        self.finish("stopped", process, 128 + signal.SIGTERM)
        at = len(self.rows("stopped"))
        self.run("stopped_resumed", "train", "gpt", "--out", str(self.out / "stopped"), "--resume")
        return f"at step {at}: " + compare(self.rows("stopped"), self.rows_after("calm"), 1e-3)

    def killed(self, name, launcher, options):
        """Kills rank 1 in the middle of a run, which must continue."""
        words = self.training(name, f"--device {self.device} {options}", length=LONG)
        process = self.started_until_half(name, *launcher, *words)
        victim = process_of_rank(1, process.pid)
        if victim:
            os.kill(victim, signal.SIGKILL)
        at = len(self.rows(name))
        self.finish(name, process)
        expect(victim and HALF <= at < self.rows(name)[-1]["step"], f"rank 1 was not killed in the middle, but at {at}")
        return f"at step {at}: " + compare(self.rows(name), self.rows_after("calm"), 1e-3)

    def add_all(self):
        for way in dict.fromkeys(way.reference() for way in WAYS):
            self.add(way.name, self.plain, way.name, way.arguments("cpu"), way.task)
        for way in WAYS:
            if self.device == "cuda" or way.name != "activation_offload":
                self.add(way.name, self.way, way)
        for job in (self.figures, self.trace, self.resumed):
            self.add(job.__name__, job)
        for device in dict.fromkeys([self.device, "cpu"]):
            self.add(f"eval_{device}", self.evaluated, device)
            self.add(f"generate_{device}", self.generated, device)
        self.add("calm", self.plain, "calm", f"--device {self.device}", "gpt", LONG)
        self.add("stopped", self.stopped)
        self.add("killed_elastic", self.killed, "killed_elastic", ["train"], "--ranks 2 --elastic")
        restarting = ["run", "-n", "2", "--share-gpus", "--max-restarts", "3", str(self.programs / "lockstep-train")]
        self.add("killed_restarts", self.killed, "killed_restarts", restarting, "")


def main(programs, out, device="cuda"):
    began = time.monotonic()
    out = pathlib.Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"gpu_train.py: expected an empty folder, found files in {out}")
    write_data(out)
    checks = Checks(pathlib.Path(programs).resolve(), out, device)
    checks.add_all()
    failed = 0
    for name, job in checks.jobs.items():
        error = job.exception()
        failed += error is not None
        text = str(error) if isinstance(error, Failed) else repr(error)
        print(f"FAIL {name:18} {text}" if error else f"ok   {name:18} {job.result()}", flush=True)
    print(f"gpu_train: {len(checks.jobs) - failed} passed, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or (sys.argv + ["cuda"])[3] not in ALL_SECONDS:
        sys.exit("usage: gpu_train.py BIN OUT [DEVICE]")
    sys.exit(main(*sys.argv[1:]))
