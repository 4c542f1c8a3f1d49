"""`./dev bench optimizer`: our AdamW compared with PyTorch's default and fused ones, and with the memory bound."""

import dataclasses
import json

from contenders import Ranks, Steps, in_turn
from figures import quotients, spread_of
from option_types import number, words
from peers_found import find_python, peer_command

STATES = {"float32": 28, "bfloat16": 20, "blocks": 16 + 4 * 4 / 256}  # bytes per parameter that a step moves
USUAL = (16, 1 << 20)  # tensors, elements


class Contender(Steps):
    """One row of the table. Two of them may share a process."""

    def __init__(self, system, kind, order, bytes_moved, ranks, is_first=True):
        if is_first:
            super().__init__(ranks)
        else:
            self.ranks, self.seconds, self.by_round, self.losses, self.bytes = ranks, [], [], [], 0
        self.system, self.kind, self.order, self.bytes_moved = system, kind, order, bytes_moved

    def take_steps(self, steps):
        """Runs a turn. The first step is not counted, because it evicts dirty cache lines of the previous turn."""
        self.take_turn(f"{self.order} {steps + 1}", uncounted=1)


def start(options):
    told = ["--tensors", options.tensors, "--elements", options.elements, "--threads", options.threads]
    python = find_python(options.python)
    commands = [
        ("pytorch", kind, peer_command(python, "optimizer.py", "--kind", kind, *told))
        for kind in ("default", "fused")
    ]
    commands += [
        ("lockstep", state, [options.rank_program, "optimizer", "--state", state, *told]) for state in options.states
    ]
    contenders = []
    for system, kind, command in commands:
        ranks = Ranks.start_each(f"{system} {kind}", command, 1, options.threads)
        contenders.append(Contender(system, kind, "update", STATES.get(kind, 28), ranks))
        if kind == "float32":
            contenders.append(Contender(system, "memory", "memory", 28, ranks, is_first=False))
    return contenders


def ratios_of(contender, by_kind):
    """Returns ratios per round: the times of PyTorch's two over this one, and the time of its bytes in the memory
    pass over its own.
    """
    ratios = {kind: quotients(by_kind[kind].by_round, contender.by_round) for kind in ("default", "fused")}
    if memory := by_kind.get("memory"):
        scale = contender.bytes_moved / memory.bytes_moved
        ratios["memory"] = quotients([seconds * scale for seconds in memory.by_round], contender.by_round)
    return ratios


def print_json(options, contender, ratios):
    seconds = spread_of(contender.seconds)
    row = {
        "bench": "optimizer",
        "system": contender.system,
        "kind": contender.kind,
        "parameters": options.tensors * options.elements,
        "threads": options.threads,
        "rounds": options.rounds,
        "bytes_per_parameter": contender.bytes_moved,
        "min_s": seconds.min,
        "p50_s": seconds.p50,
        "max_s": seconds.max,
        "ratio_default_to_this": dataclasses.asdict(ratios["default"]),
        "ratio_fused_to_this": dataclasses.asdict(ratios["fused"]),
    }
    if "memory" in ratios:
        row["share_of_memory_bound"] = dataclasses.asdict(ratios["memory"])
    print(json.dumps(row), flush=True)


def text_of(spread):
    return f"{spread.p50:.2f} ({spread.p25:.2f} .. {spread.p75:.2f})" if spread else "-"


def print_table(options, contenders, by_kind):
    print(
        f"optimizer: AdamW over {options.tensors * options.elements} float32 parameters, threads={options.threads} "
        f"rounds={options.rounds} steps={options.steps}\nratios: median (quartiles) of the rounds"
    )
    print(
        f"{'':<20}{'ms min':>10}{'ms p50':>10}{'bytes':>8}  {'default / this':<22}{'fused / this':<22}"
        "share of memory bound"
    )
    for contender in contenders:
        seconds, ratios = spread_of(contender.seconds), ratios_of(contender, by_kind)
        print(
            f"{contender.system + ' ' + contender.kind:<20}{seconds.min * 1e3:>10.2f}{seconds.p50 * 1e3:>10.2f}"
            f"{contender.bytes_moved:>8.2f}  {text_of(ratios['default']):<22}{text_of(ratios['fused']):<22}"
            f"{text_of(ratios.get('memory'))}"
        )


def judge(options, ratios, judgements):
    usual = (options.tensors, options.elements) == USUAL
    facts = {"usual_size": usual, "threads": options.threads}
    for kind in ("default", "fused"):
        judgements.judge(
            "optimizer", f"{kind} / ours float32", facts, f"AdamW: PyTorch {kind} / ours float32", ratios[kind].p50
        )
    judgements.judge(
        "optimizer", "share of the memory bound", facts, "AdamW: share of the memory bound", ratios["memory"].p50
    )


def compare(options, judgements):
    contenders = start(options)
    try:
        for contender in contenders:
            contender.take_steps(1)  # warm-up
            contender.forget()
        for contender in in_turn(contenders, options.rounds):
            contender.take_steps(options.steps)
    finally:
        for contender in contenders:
            contender.ranks.close()
    by_kind = {contender.kind: contender for contender in contenders}
    if options.json:
        for contender in contenders:
            print_json(options, contender, ratios_of(contender, by_kind))
    else:
        print_table(options, contenders, by_kind)
    if "float32" in by_kind:
        judge(options, ratios_of(by_kind["float32"], by_kind), judgements)


def add_options(parser):
    parser.add_argument("--tensors", type=number(1, 100_000), default=USUAL[0], help="parameter tensors")
    parser.add_argument("--elements", type=number(1, 1 << 30), default=USUAL[1], help="of a tensor")
    parser.add_argument("--threads", type=number(1, 1024), default=1, help="of a system")
    parser.add_argument("--states", type=words(STATES), default=list(STATES), help="of our AdamW")
    parser.add_argument("--rounds", type=number(1, 100_000), default=10, help="turns of each contender")
    parser.add_argument("--steps", type=number(1, 100_000), default=3, help="steps per turn")
