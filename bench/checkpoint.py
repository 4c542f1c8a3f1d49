"""`./dev bench checkpoint`: saving and loading, compared with torch.distributed.checkpoint, the disk and the memory.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import time

from contenders import Failed, Ranks, Steps, in_turn
from figures import as_time, quotients, spread_of
from option_types import number
from peers_found import find_python, peer_command

USUAL = 512  # MiB of model and optimizer state
# Ratios of our time to theirs: numerator, denominator, and name.
RATIOS = (
    ("dcp save", "ours async", "dcp.save / what ours blocks, asynchronous"),
    ("dcp async", "ours async", "dcp.async_save / what ours blocks, asynchronous"),
    ("dcp save", "ours save", "dcp.save / our save"),
    ("dd", "ours save", "durable rate: our save / dd conv=fsync"),
    ("memcpy", "ours load", "load with checksums / memcpy"),
    ("memcpy", "ours trusted", "load without checksums / memcpy"),
)


class Asked(Steps):
    """One kind of request to ranks; several kinds may share a process."""

    def __init__(self, name, order, ranks):
        self.name, self.order, self.ranks = name, order, ranks
        self.seconds, self.by_round, self.losses, self.bytes = [], [], [], 0

    def take(self, times):
        self.take_turn(f"{self.order} {times}")


class Dd:
    """Writes as many bytes as a checkpoint has by dd, which returns when they are on the disk."""

    def __init__(self, folder, mib):
        self.name, self.folder, self.mib = "dd", pathlib.Path(folder), mib
        self.seconds, self.by_round = [], []

    def take(self, times):
        found = []
        for _ in range(times):
            out = self.folder / "dd"
            words = ["dd", "if=/dev/zero", f"of={out}", "bs=4M", f"count={max(1, self.mib // 4)}", "conv=fsync"]
            start = time.perf_counter()
            done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
            found.append(time.perf_counter() - start)
            if done.returncode != 0:
                raise Failed(f"dd ended with {done.returncode}: {done.stderr.splitlines()[-1:]}")
            out.unlink()
            os.sync()
        self.seconds += found
        self.by_round.append(sum(found) / len(found))

    def forget(self):
        self.seconds, self.by_round = [], []


def start(options, folder):
    told = ["--folder", folder, "--mib", options.mib, "--threads", options.threads]
    ours = Ranks.start_each("lockstep", [options.rank_program, "checkpoint", *told], 1, options.threads)
    python = find_python(options.python)
    dcp = Ranks.start_each("dcp", peer_command(python, "checkpoint.py", *told), 1, options.threads)
    for ranks in (ours, dcp):
        ranks.answers()  # "ready"
    contenders = [Asked(f"ours {order}", order, ours) for order in ("async", "save", "load", "trusted")]
    contenders += [Asked("memcpy", "memcpy", ours), Asked("dcp save", "save", dcp), Asked("dcp async", "async", dcp)]
    return [*contenders, Dd(folder, options.mib)], (ours, dcp)


def ratios_of(by_name):
    return [
        (above, below, words, quotients(by_name[above].by_round, by_name[below].by_round))
        for above, below, words in RATIOS
    ]


def print_table(options, contenders, ratios):
    print(
        f"checkpoint: {options.mib} MiB of model and optimizer state, one rank, threads={options.threads} "
        f"(memcpy and dd: 1), rounds={options.rounds}"
    )
    print(f"{'':<16}{'min':>12}{'p50':>12}{'max':>12}{'MiB/s at p50':>15}")
    for contender in contenders:
        found = spread_of(contender.seconds)
        print(
            f"{contender.name:<16}{as_time(found.min):>12}{as_time(found.p50):>12}{as_time(found.max):>12}"
            f"{options.mib / found.p50:>15.0f}"
        )
    print("ratios: median (quartiles) of the rounds")
    for _, _, words, ratio in ratios:
        print(f"  {words:<50}{ratio.p50:>8.2f} ({ratio.p25:.2f} .. {ratio.p75:.2f})")


def print_json(options, contenders, ratios):
    for contender in contenders:
        found = spread_of(contender.seconds)
        row = {"bench": "checkpoint", "what": contender.name, "mib": options.mib, "threads": options.threads}
        row["rounds"] = options.rounds
        print(json.dumps({**row, "min_s": found.min, "p50_s": found.p50, "max_s": found.max}))
    for above, below, words, ratio in ratios:
        row = {"bench": "checkpoint", "ratio": f"{above} / {below}", "what": words}
        print(json.dumps({**row, "p25": ratio.p25, "p50": ratio.p50, "p75": ratio.p75}))


def compare(options, judgements):
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=options.folder) as folder:
        contenders, processes = start(options, folder)
        try:
            for contender in contenders:
                contender.take(1)  # warm-up
                contender.forget()
            for contender in in_turn(contenders, options.rounds):
                contender.take(1)
        finally:
            for ranks in processes:
                ranks.close()
    ratios = ratios_of({contender.name: contender for contender in contenders})
    (print_json if options.json else print_table)(options, contenders, ratios)
    facts = {"usual_size": options.mib == USUAL}
    for above, below, words, ratio in ratios:
        judgements.judge("checkpoint", f"{above} / {below}", facts, f"checkpoint: {words}", ratio.p50)


def add_options(parser):
    parser.add_argument("--mib", type=number(1, 1 << 20), default=USUAL, help="of model and optimizer state")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build"), help="on the disk to measure")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=number(1, 1024), default=cores, help="of a rank; all cores, as by default")
    parser.add_argument("--rounds", type=number(1, 100_000), default=10, help="turns of each contender")
