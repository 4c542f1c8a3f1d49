"""Prints the results of `./dev bench collectives`, and the goals that apply to them."""

import dataclasses
import json
import sys

from figures import as_time, quotients

MEMORIES = ("arena", "ordinary", "node-shared")


def print_machine(machine, ranks):
    core_to_core = as_time(machine.core_to_core) if machine.core_to_core else "not measured with one core"
    print(
        f"memory {machine.bytes_per_second / 1e9:.1f} GB/s by {ranks} ranks, reading as much as writing; from core "
        f"to core {core_to_core}"
    )


def print_row(measured):
    row, bound = measured.row, measured.bound
    text = row.title()
    if bound:
        text += f"; bound 2pn/B {as_time(bound)} at B = {row.bytes_moved() / bound / 1e9:.1f} GB/s"
    print(
        f"\n{text}\n  {'':<14}{'tensors':<13}{'min':>9}{'p50':>9}{'p99':>9}{'max':>9}{'mean':>9}{'calls':>8}"
        f"{'alg GB/s':>9}{'bus GB/s':>9}{'  of bound' if bound else ''}"
    )
    for line in measured.lines:
        seconds, algorithm = line.seconds, row.bytes / line.seconds.p50 / 1e9
        p99 = as_time(seconds.p99) if seconds.p99 else "-"
        share = f"{100 * bound / seconds.p50:>8.0f} %" if bound else ""
        print(
            f"  {line.backend:<14}{line.memory:<13}{as_time(seconds.min):>9}{as_time(seconds.p50):>9}{p99:>9}"
            f"{as_time(seconds.max):>9}{as_time(seconds.mean):>9}{seconds.calls:>8}{algorithm:>9.2f}"
            f"{algorithm * row.bus_share():>9.2f}{share}"
        )
    sys.stdout.flush()


def print_json(measured, machine):
    row, bound = measured.row, measured.bound
    for line in measured.lines:
        seconds, algorithm = line.seconds, row.bytes / line.seconds.p50
        print(
            json.dumps(
                {
                    "op": row.op,
                    "bytes": row.bytes,
                    "ranks": row.ranks,
                    "memory": line.memory,
                    "backend": line.backend,
                    "min_s": seconds.min,
                    "p50_s": seconds.p50,
                    "p99_s": seconds.p99,
                    "max_s": seconds.max,
                    "mean_s": seconds.mean,
                    "calls": seconds.calls,
                    "outsider": row.outsider,
                    "library": line.library,
                    "algorithm_bytes_per_s": algorithm,
                    "bus_bytes_per_s": algorithm * row.bus_share(),
                    "memory_bytes_per_s": row.bytes_moved() / bound if bound else machine.bytes_per_second,
                    "core_to_core_s": machine.core_to_core,
                    "bound_s": bound,
                }
            ),
            flush=True,
        )


def print_ratios(rows):
    """Prints ratios of medians, with the least and most over rounds; a call that moves no bytes is shown as its time.
    """
    print(f"\n{'p50 / p50':<62}{'ours on':<13}{'peer':>14}{'ratio':>9}   in the rounds")
    for measured in rows:
        for theirs in measured.lines:
            for memory in ("arena", "ordinary"):
                ours = measured.find("shm", memory)
                if theirs.backend == "shm" or ours is None:
                    continue
                rounds = quotients(theirs.medians, ours.medians)
                ratio = theirs.seconds.p50 / ours.seconds.p50
                print(
                    f"{measured.row.title():<62}{memory:<13}{theirs.backend:>14}{ratio:>9.2f}"
                    f"   {rounds.min:.2f} to {rounds.max:.2f}"
                )
    for measured in rows:
        if ours := measured.find("shm", "node-shared"):
            print(
                f"{measured.row.title():<62}{'node-shared':<13}{'no byte moves':>14}{as_time(ours.seconds.p50):>9}   "
                f"{as_time(min(ours.medians))} to {as_time(max(ours.medians))}"
            )
    by_row = {each.row: each for each in rows}
    for measured in rows:
        alone = by_row.get(dataclasses.replace(measured.row, outsider=False))
        if not measured.row.outsider or not alone:
            continue
        for line in measured.lines:
            without = alone.find(line.backend, line.memory)
            print(
                f"{measured.row.title():<62}{line.memory:<13}{line.backend:>14}"
                f"{line.seconds.mean / without.seconds.p50:>9.2f}   mean beside it / p50 alone"
            )


def judge(measured, judgements):
    row = measured.row
    for memory in MEMORIES:
        ours = measured.find("shm", memory)
        if ours is None:
            continue
        facts = {"op": row.op, "bytes": row.bytes, "ranks": row.ranks, "memory": memory, "outsider": row.outsider}
        seconds = ours.seconds

        def judged(figure, found, words=None):
            judgements.judge("collectives", figure, facts, f"{row.title()}, {memory}: {words or figure}", found)

        for peer in ("gloo", "mpi"):
            if (theirs := measured.find(peer, "ordinary")) and memory != "node-shared":
                judged(f"{peer} / ours", theirs.seconds.p50 / seconds.p50)
        if measured.bound:
            judged("share of 2pn/B", measured.bound / seconds.p50)
        judged(
            "p99 / p50", (seconds.p99 or seconds.max) / seconds.p50, None if seconds.p99 else "max / p50 of few calls"
        )
        judged("mean / p50", seconds.mean / seconds.p50)
        if memory == "node-shared":
            judged("us", seconds.p50 * 1e6)
