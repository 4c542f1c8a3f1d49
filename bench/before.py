"""`./dev bench before BUILD`: an earlier build of Lockstep and this one, doing the same work in turn in one run.

BUILD is the build folder of another working tree, with the targets lockstep_command and lockstep-bench-rank.
"""

import argparse
import importlib
import json
import pathlib
import tempfile

import checkpoint
import launch
import pipeline
import step
from collectives import Contender, measure_row
from collectives_report import MEMORIES
from collectives_rows import KIB, MIB, Row
from contenders import Failed, Ranks, in_turn
from figures import as_time, quotients, spread_of
from option_types import number, words
from step_shared import run_rounds

SYSTEMS = ("before", "now")
ROWS = [Row("all_reduce", size, 2) for size in (64, KIB, 16 * KIB, MIB, 64 * MIB)] + [
    Row(op, 16 * MIB, 2) for op in ("all_gather", "reduce_scatter", "broadcast", "all_to_all")
]
STEPS = {"mlp": step.OUR_MODES, "gpt": ("ddp", "full")}
CHECKPOINT_ORDERS = ("async", "save", "load", "trusted")


def options_of(bench, options):
    """Returns the options that another benchmark has by default, with the rounds of this one, for each build."""
    parser = argparse.ArgumentParser()
    importlib.import_module(bench).add_options(parser)
    found = []
    for build in (options.before, options.build):
        one = parser.parse_args([])
        one.build, one.rounds, one.rank_program = build, options.rounds, build / "bench/lockstep-bench-rank"
        found.append(one)
    return found


def collectives(options):
    told = options_of("collectives", options)
    contenders = []
    try:
        for system, one in zip(SYSTEMS, told):
            command = [one.rank_program, "collectives"]
            ranks = Ranks.start_each(system, command, 2, variables={"LOCKSTEP_BACKEND": "shm"})
            contenders.append(Contender(system, MEMORIES, ranks))
            contenders[-1].wait_until_ready()
        for row in ROWS:
            measured = measure_row(row, contenders, told[1])
            for memory in MEMORIES:
                lines = [measured.find(system, memory) for system in SYSTEMS]
                if all(lines):
                    yield f"{row.title()}, {memory}", *(line.medians for line in lines)
    finally:
        for contender in contenders:
            contender.ranks.close()


def in_rounds(start, told):
    """Starts the ranks of both builds, runs them in turn, and returns the times of their rounds."""
    contenders = []
    try:
        for one in told:
            contenders.append(start(one))
        run_rounds(contenders, told[1])
    finally:
        for contender in contenders:
            contender.ranks.close()
    return [contender.by_round for contender in contenders]


def steps(options):
    told = options_of("step", options)
    for model, modes in STEPS.items():
        for one in told:
            one.model, one.steps = model, 1 if model == "gpt" else one.steps  # which takes seconds
        for mode in modes:

            def start(one, name=step.Name("ours", mode)):
                return step.start_one(name, one, fused=True)

            yield f"step of {model}, {mode}", *in_rounds(start, told)


def pipelines(options):
    told = options_of("pipeline", options)
    for schedule in pipeline.OUR_SCHEDULES:

        def start(one, name=("ours", schedule)):
            return pipeline.start_one(name, one)

        yield f"step by {schedule}", *in_rounds(start, told)


def checkpoints(options):
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=options.build) as folder:
        started = []
        try:
            for system, one in zip(SYSTEMS, options_of("checkpoint", options)):
                own = pathlib.Path(folder, system)
                own.mkdir()
                told = ["checkpoint", "--folder", own, "--mib", one.mib, "--threads", one.threads]
                started.append(Ranks.start_each(system, [one.rank_program, *told], 1, one.threads))
                started[-1].answers()  # "ready"
            for order in CHECKPOINT_ORDERS:
                contenders = [checkpoint.Asked(order, order, ranks) for ranks in started]
                for contender in contenders:
                    contender.take(1)  # warm-up
                    contender.forget()
                for contender in in_turn(contenders, options.rounds):
                    contender.take(1)
                yield f"checkpoint of {one.mib} MiB, {order}", *(contender.by_round for contender in contenders)
        finally:
            for ranks in started:
                ranks.close()


def launches(options):
    told = options_of("launch", options)
    for kind in launch.ROWS:
        count = told[1].clients[0] if kind == "store" else 2
        seconds = ([], [])
        for _ in range(options.rounds):
            for one, found in zip(told, seconds):
                found.append(launch.MEASURES[kind](one, "lockstep", count))
        yield {"store": "a request of the store"}.get(kind, f"{kind} of {count} ranks"), *seconds


PARTS = {
    "collectives": collectives,
    "step": steps,
    "pipeline": pipelines,
    "checkpoint": checkpoints,
    "launch": launches,
}


def compare(options, judgements):
    for program in ("bench/lockstep-bench-rank", "bin/lockstep"):
        if not (options.before / program).exists():
            raise Failed(f"{options.before}: expected the build folder of another working tree, found no {program}")
    if not options.json:
        print(f"{'':<48}{'before':>10}{'now':>10}   before / now: median (quartiles) of {options.rounds} rounds")
    for part in options.parts:
        for what, before, now in PARTS[part](options):
            ratio = quotients(before, now)
            verdict = judgements.judge("before", "before / now", {}, what, ratio.p50)
            if options.json:
                row = {"bench": "before", "part": part, "what": what, "before_s": before, "now_s": now}
                print(json.dumps({**row, "p25": ratio.p25, "p50": ratio.p50, "p75": ratio.p75}), flush=True)
                continue
            times = "".join(f"{as_time(spread_of(seconds).p50):>10}" for seconds in (before, now))
            print(f"{what:<48}{times}   {ratio.p50:.3f} ({ratio.p25:.3f} .. {ratio.p75:.3f})  {verdict}", flush=True)


def add_options(parser):
    parser.add_argument("before", type=pathlib.Path, metavar="BUILD", help="the build folder of the earlier version")
    parser.add_argument("--parts", type=words(PARTS), default=list(PARTS), help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=number(1, 1000), default=10, help="turns of each build")
