"""The tail of a step: from gradients on every rank to updated parameters on every rank."""

import json

from contenders import Failed, Ranks, Steps
from figures import quotients, spread_of
from peers_found import find_python, peer_command
from step_shared import check_optimizer, run_rounds

USUAL_TAIL = (16, 1 << 20)  # tensors, elements of each
TAILS = {
    ("pytorch", "replicated"): "PyTorch: Gloo all_reduce, then fused AdamW",
    ("pytorch", "sharded"): "PyTorch: reduce_scatter, fused AdamW of a shard, all_gather",
    ("ours", "replicated"): "ours: all_reduce, then AdamW",
    ("ours", "sharded"): "ours: node-shared, one pass (reduce_in_step)",
}
# The last ratio compares unequal work: PyTorch's DDP updates everything on every rank, ours updates a shard.
TAIL_RATIOS = [
    (("pytorch", "replicated"), ("ours", "replicated")),
    (("pytorch", "sharded"), ("ours", "sharded")),
    (("pytorch", "replicated"), ("ours", "sharded")),
]


def compare_tails(options, judgements):
    sizes = ["--tensors", options.tensors, "--elements", options.elements, "--threads", options.threads]
    if options.tensors * options.elements % options.ranks:
        raise Failed(f"--elements: {options.ranks} ranks must divide the parameters")
    tails = {}
    try:
        for system, kind in TAILS:
            words = ["--kind", kind, *sizes]
            command = (
                [options.rank_program, "tail", *words]
                if system == "ours"
                else peer_command(find_python(options.python), "tail.py", *words)
            )
            tails[system, kind] = Steps(
                Ranks.start_each(TAILS[system, kind], command, options.ranks, options.threads)
            )
            check_optimizer(tails[system, kind], TAILS[system, kind], True)
        run_rounds(list(tails.values()), options)
    finally:
        for tail in tails.values():
            tail.ranks.close()
    report_tails(options, tails, judgements)


def report_tails(options, tails, judgements):
    parameters = options.tensors * options.elements
    if options.json:
        for (system, kind), tail in tails.items():
            seconds = spread_of(tail.seconds)
            print(
                json.dumps(
                    {
                        "bench": "step",
                        "system": "lockstep" if system == "ours" else system,
                        "model": "flat",
                        "mode": "tail",
                        "kind": kind,
                        "ranks": options.ranks,
                        "min_s": seconds.min,
                        "p50_s": seconds.p50,
                        "bytes": tail.bytes,
                        "parameters": parameters,
                        "round_means_s": tail.by_round,
                    }
                ),
                flush=True,
            )
    else:
        print(
            f"tail of a step: {parameters} fp32 parameters, ranks={options.ranks} threads={options.threads}\n"
            f"{'':<60}{'min':>10}{'p50':>10}{'max':>10}"
        )
        for key, tail in tails.items():
            seconds = spread_of(tail.seconds)
            print(
                f"{TAILS[key]:<60}{seconds.min * 1e3:>10.2f}{seconds.p50 * 1e3:>10.2f}{seconds.max * 1e3:>10.2f} ms"
            )
    facts = {"ranks": options.ranks, "usual_size": (options.tensors, options.elements) == USUAL_TAIL}
    for theirs, ours in TAIL_RATIOS:
        found = quotients(tails[theirs].by_round, tails[ours].by_round)
        words = f"PyTorch {theirs[1]} / ours {ours[1]}" + ("" if theirs[1] == ours[1] else " (not of equal work)")
        verdict = judgements.judge(
            "tail", f"{theirs[0]} {theirs[1]} / {ours[0]} {ours[1]}", facts, f"tail: {words}", found.p50
        )
        if not options.json:
            print(f"{words:<60}{found.p50:>8.3f}   {found.p25:.3f} .. {found.p75:.3f}   {verdict}")
    moved = tails["ours", "sharded"].bytes * options.ranks / parameters
    judgements.judge(
        "tail", "bytes / (4p + 24)", facts, "tail: bytes moved by ours / (4p + 24)", moved / (4 * options.ranks + 24)
    )
    if not options.json:
        print(
            f"bytes moved a parameter, all ranks, by counter: {moved:.2f}; 4p + 24 is {4 * options.ranks + 24}\n",
            flush=True,
        )
