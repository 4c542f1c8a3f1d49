"""`./dev bench family`: the same training with every strategy that keeps whole models, one run per strategy.

Bytes are those that a rank sends in its strategy's collectives, or that a worker pushes and pulls; devices of one
process send none. Times cover whole runs and are ratios to `ddp` of the same call; they are meaningful on a quiet
host only.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile

from contenders import Failed
from option_types import number, words

# Options of `lockstep train`, by name.
WAYS = {
    "one": "--ranks 1",
    "ddp": "--ranks {ranks}",
    "dp": "--strategy threads --devices {ranks}",
    "ps-synchronous": "--strategy ps --servers 1 --workers {ranks}",
    "ps-stale": "--strategy ps --servers 1 --workers {ranks} --staleness 4",
    "ps-asynchronous": "--strategy ps --servers 1 --workers {ranks} --consistency asynchronous",
    "bf16": "--ranks {ranks} --hook bf16",
    "fp16": "--ranks {ranks} --hook fp16",
    "powersgd": "--ranks {ranks} --hook powersgd:2 --hook-start 10",
    "bf16-powersgd": "--ranks {ranks} --hook bf16+powersgd:2 --hook-start 10",
    "local-sgd": "--ranks {ranks} --local-sgd 8",
    "post-local-sgd": "--ranks {ranks} --local-sgd 8 --local-sgd-start {third}",
    "diloco": "--ranks {ranks} --diloco 20",
    "diloco-int8": "--ranks {ranks} --diloco 20 --diloco-int8 --diloco-fragments 2",
    "sync-batch-norm": "--ranks {ranks} --sync-batch-norm",
}
NAMES = {
    "one": "one rank, all rows of a batch",
    "ddp": "`DistributedDataParallel`",
    "dp": "`DataParallel`",
    "ps-synchronous": "parameter server, synchronous",
    "ps-stale": "stale-synchronous, bound 4",
    "ps-asynchronous": "asynchronous",
    "bf16": "hook `bf16`",
    "fp16": "hook `fp16`",
    "powersgd": "hook `powersgd:2`",
    "bf16-powersgd": "hook `bf16+powersgd:2`",
    "local-sgd": "local SGD, every 8 steps",
    "post-local-sgd": "the same after a third of the steps",
    "diloco": "DiLoCo, every 20 steps",
    "diloco-int8": "DiLoCo, int8, 2 fragments",
    "sync-batch-norm": "DDP with SyncBatchNorm",
}
ONLY_CIFAR = {"sync-batch-norm"}
# These make an update per gradient, so they have more updates, with the learning rate divided by the same factor.
UPDATE_FOR_EACH_GRADIENT = {"ps-stale", "ps-asynchronous"}

# Options that all runs of a task share; with this number of ranks, a step has the same rows in each run.
TASKS = {
    "mnist": {"lr": 0.01, "told": "--batch 60 --lr {lr} --gamma 1", "length": "--steps 1000", "steps": 1000},
    "cifar": {"lr": 0.1, "told": "--batch 128 --width 16 --lr {lr}", "length": "--epochs 3", "steps": 120},
}


def run_one(options, task, way, out):
    sizes = TASKS[task]
    lr = sizes["lr"] / (options.ranks if way in UPDATE_FOR_EACH_GRADIENT else 1)
    length = f"--steps {options.steps}" if options.steps else sizes["length"]
    told = f"{task} --data {{data}} --out {{out}} --threads 1 {length} {sizes['told']} {WAYS[way]}".split()
    values = {"ranks": options.ranks, "lr": lr, "third": (options.steps or sizes["steps"]) // 3}
    values |= {"data": getattr(options, task), "out": out}
    command = [options.build / "bin/lockstep-train", *(word.format(**values) for word in told)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise Failed(f"{task} by {way}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return figures_of(out / "result.txt", way)


def figures_of(result, way):
    found = dict(re.findall(r"(\w+)=(\S+)", result.read_text()))
    sent = [int(found[name]) for name in ("sent_bytes", "pushed_bytes", "pulled_bytes") if name in found]
    return {
        "way": way,
        "accuracy": float(found["accuracy"]),
        "val_loss": float(found["val_loss"]),
        "bytes": sum(sent) if sent else None,
        "seconds": float(found["seconds"]),
    }


def table_of(task, rows, options):
    by_way = {row["way"]: row for row in rows}
    ddp = by_way.get("ddp")
    lines = [f"{task}: {options.ranks} ranks, workers or devices, one thread each"]
    lines.append(f"{'':<18}{'accuracy':>10}{'val_loss':>10}{'bytes a rank':>16}{'bytes / ddp':>13}{'time / ddp':>12}")
    for row in rows:
        share = f"{row['bytes'] / ddp['bytes']:.4f}" if ddp and row["bytes"] else ""
        time = f"{row['seconds'] / ddp['seconds']:.2f}" if ddp else ""
        sent = f"{row['bytes']:,}" if row["bytes"] else ""
        lines.append(
            f"{row['way']:<18}{row['accuracy']:>10.4f}{row['val_loss']:>10.3f}{sent:>16}{share:>13}{time:>12}"
        )
    return "\n".join(lines)


# In the form of docs/reference/strategies_measured.md, to be pasted there.
def markdown_of(task, rows, options):
    ddp = next((row for row in rows if row["way"] == "ddp"), None)
    lines = ["| `--ways` | | accuracy | val_loss | bytes / ddp | time / ddp |", "|---|---|---|---|---|---|"]
    for row in rows:
        share = f"{row['bytes'] / ddp['bytes']:.3g}" if ddp and row["bytes"] else ""
        time = f"{row['seconds'] / ddp['seconds']:.2f}" if ddp else ""
        cells = [row["way"], NAMES[row["way"]], f"{row['accuracy']:.4f}", f"{row['val_loss']:.3f}", share, time]
        lines.append("| " + " | ".join(cells) + " |")
    if ddp:
        lines.append(f"\n`ddp` of {task}: {ddp['bytes']:,} bytes a rank, {ddp['seconds']:.1f} s.")
    return "\n".join(lines)


def compare(options, judgements):
    tasks = [task for task in TASKS if getattr(options, task)]
    if not tasks:
        raise Failed("name the data of a task: --mnist FOLDER, --cifar FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            rows = []
            for way in options.ways:
                if way in ONLY_CIFAR and task != "cifar":
                    continue
                rows.append(run_one(options, task, way, pathlib.Path(folder) / f"{task}-{way}"))
                if options.json:
                    row = {"bench": "family", "task": task, "ranks": options.ranks, **rows[-1]}
                    print(json.dumps(row), flush=True)
            if not options.json:
                print((markdown_of if options.markdown else table_of)(task, rows, options), flush=True)


def add_options(parser):
    parser.add_argument("--mnist", type=pathlib.Path, metavar="FOLDER", help="the four IDX files")
    parser.add_argument("--cifar", type=pathlib.Path, metavar="FOLDER", help="CIFAR-10's binary files")
    parser.add_argument("--ranks", type=number(1, 16), default=2, help="2 when not given")
    parser.add_argument("--markdown", action="store_true", help="the table as the document has it")
    parser.add_argument("--steps", type=number(1, 10**6), help="1000 of mnist, 3 epochs of cifar when not given")
    parser.add_argument("--ways", type=words(list(WAYS)), default=list(WAYS), help="some of: " + ",".join(WAYS))
