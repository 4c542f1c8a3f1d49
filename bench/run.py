#!/usr/bin/env python3
"""`./dev bench`: compares Lockstep with Gloo, MPI and PyTorch, doing the same work in turn in one run."""

import argparse
import importlib
import pathlib
import sys

from contenders import Failed
from goals import Judgements

BENCHES = {
    "collectives": "all_reduce and the others beside Gloo and MPI, and their lower bound",
    "step": "a training step: forward, backward, averaging, AdamW; in every mode of both systems",
    "pipeline": "a step of a model in stages, beside torch.distributed.pipelining and the simulator",
    "memory": "what a rank holds at each level of sharding, beside what the formulas say",
    "launch": "starts and restarts beside torchrun, and the store's requests beside c10d's",
    "checkpoint": "saving and loading beside torch.distributed.checkpoint, dd and memcpy",
    "family": "MNIST and CIFAR-10 by every strategy that keeps whole models: accuracy, bytes, time",
    "optimizer": "AdamW beside PyTorch's default and fused ones, and the memory bound",
    "before": "an earlier build of Lockstep and this one, in turn: collectives, steps, checkpoints, starts",
}
SOURCE = pathlib.Path(__file__).resolve().parent.parent


def parser_of_all():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    for name, about in BENCHES.items():
        one = benches.add_parser(name, help=about, description=about)
        importlib.import_module(name).add_options(one)
        one.add_argument("--python", help="a Python with torch; else LOCKSTEP_PYTHON, else .venv/bin/python")
        one.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/release", help=argparse.SUPPRESS)
        one.add_argument("--json", action="store_true", help="one JSON object per row instead of the tables")
        one.add_argument("--check", action="store_true", help="end with 1 when a goal (bench/goals.py) is missed")
    return parser


def main():
    options = parser_of_all().parse_args()
    options.rank_program = options.build / "bench/lockstep-bench-rank"
    options.measure_program = options.build / "bench/lockstep-measure"
    judgements = Judgements()
    try:
        importlib.import_module(options.bench).compare(options, judgements)
    except Failed as error:
        sys.exit(f"bench {options.bench}: {error}")
    if judgements.found and options.bench in ("checkpoint", "collectives", "optimizer") and not options.json:
        print("\n" + "\n".join(judgements.table()))
    if options.check and not judgements.found:
        sys.exit("no goal speaks of what was measured")
    if options.check and judgements.missed():
        sys.exit("goals missed:\n" + "\n".join(judgements.missed()))


if __name__ == "__main__":
    main()
