"""`./dev bench pipeline`: steps of a model in stages, ours and torch.distributed.pipelining in turn, in one run.

Rows of our schedules also have the time of a step by the simulator, computed from the measured times of the actions.
`real / simulated` is the measured time from the first to the last action of the slowest rank, divided by the
simulated time.
"""

import json

from contenders import Failed, Ranks, Steps, our_malloc, products_of
from figures import quotients, spread_of
from option_types import number, words
from peers_found import find_python, peer_command
from step_shared import run_rounds

OUR_SCHEDULES = ("gpipe", "1f1b", "zb-h1", "zbv")
PYTORCH_SCHEDULES = ("gpipe", "1f1b", "zbv")
SYSTEMS = {"ours": "ours", "pytorch": "PyTorch"}
EQUAL_LOSSES = 1e-4  # relative
USUAL_SIZES = {"width": 1024, "depth": 8, "rows": 128, "micro_batches": 8}


class PipelineSteps(Steps):
    def __init__(self, name, ranks):
        super().__init__(ranks)
        self.name = name  # per system and schedule
        self.real_of_simulated = []

    def title(self):
        return f"{SYSTEMS[self.name[0]]} {self.name[1]}"

    def take_turn(self, line, uncounted=0):
        answers = self.ranks.ask(line)
        slowest = [max(step) for step in zip(*(answer["seconds"] for answer in answers))][uncounted:]
        self.seconds += slowest
        self.by_round.append(sum(slowest) / len(slowest))
        self.losses = next(answer["losses"] for answer in answers if answer["losses"])
        if "promised" in answers[0]:
            self.real_of_simulated.append(answers[0]["measured"] / answers[0]["promised"])

    def forget(self):
        super().forget()
        self.real_of_simulated = []


def start_one(name, options):
    system, schedule = name
    told = ["--schedule", schedule, "--threads", options.threads]
    for size in USUAL_SIZES:
        told += [f"--{size.replace('_', '-')}", getattr(options, size)]
    if system != "pytorch":
        command, malloc = [options.rank_program, "pipeline", *told], {}
    else:
        command = peer_command(find_python(options.python), "pipeline.py", *told)
        malloc = our_malloc(options.rank_program)
    ranks = Ranks.start_each(" ".join(name), command, options.ranks, options.threads, malloc)
    try:
        return PipelineSteps(name, ranks)
    except Failed:
        ranks.close()
        raise


def check_losses(contenders):
    own = contenders[0]
    for other in contenders[1:]:
        for one, another in zip(own.losses, other.losses):
            if not abs(one - another) <= EQUAL_LOSSES * abs(another):
                raise Failed(f"expected equal losses, found {one} of {own.title()} and {another} of {other.title()}")


def compare(options, judgements):
    names = [("ours", one) for one in options.schedule]
    names += [("pytorch", one) for one in options.schedule if one in PYTORCH_SCHEDULES]
    contenders = []
    try:
        for name in names:
            contenders.append(start_one(name, options))
        run_rounds(contenders, options)
    finally:
        for contender in contenders:
            contender.ranks.close()
    check_losses(contenders)
    if options.json:
        print_json(options, contenders)
    else:
        print_table(options, contenders)
    print_ratios(options, contenders, judgements)


def print_json(options, contenders):
    for one in contenders:
        seconds = spread_of(one.seconds)
        row = {"bench": "pipeline", "system": "lockstep" if one.name[0] == "ours" else one.name[0]}
        row |= {"schedule": one.name[1], "ranks": options.ranks, "threads": options.threads}
        row |= {size: getattr(options, size) for size in USUAL_SIZES}
        row |= {"min_s": seconds.min, "p50_s": seconds.p50, "max_s": seconds.max, "losses": one.losses}
        row |= {"round_means_s": one.by_round, "real_of_simulated": one.real_of_simulated}
        row |= {"products": one.ready[0].get("products")}
        print(json.dumps(row), flush=True)


def print_table(options, contenders):
    print(
        f"pipeline: {options.depth} layers of {options.width} x {options.width} on {options.ranks} ranks, "
        f"{options.micro_batches} micro-batches of {options.rows} rows, SGD, threads={options.threads}, "
        f"rounds={options.rounds} steps={options.steps}{products_of(contenders)}"
    )
    print(f"{'seconds':<20}{'min':>10}{'p50':>10}{'max':>10}   real / simulated")
    for one in contenders:
        seconds = spread_of(one.seconds)
        real = f"{spread_of(one.real_of_simulated).p50:.3f}" if one.real_of_simulated else ""
        print(f"{one.title():<20}{seconds.min:>10.4f}{seconds.p50:>10.4f}{seconds.max:>10.4f}   {real}")


def print_ratios(options, contenders, judgements):
    found = {one.name: one for one in contenders}
    pairs = [(("pytorch", one), ("ours", one)) for one in PYTORCH_SCHEDULES] + [(("ours", "1f1b"), ("ours", "zbv"))]
    usual = all(getattr(options, size) == value for size, value in USUAL_SIZES.items())
    if not options.json:
        print(f"\n{'time / time':<40}{'p50':>8}   quartiles of the rounds")
    for numerator, denominator in pairs:
        if numerator not in found or denominator not in found:
            continue
        ratio = quotients(found[numerator].by_round, found[denominator].by_round)
        figure = f"{' '.join(numerator)} / {' '.join(denominator)}"
        what = f"{found[numerator].title()} / {found[denominator].title()}"
        facts = {"ranks": options.ranks, "usual_size": usual, "width": options.width, "rows": options.rows}
        verdict = judgements.judge("pipeline", figure, facts, what, ratio.p50)
        if not options.json:
            print(f"{what:<40}{ratio.p50:>8.3f}   {ratio.p25:.3f} .. {ratio.p75:.3f}   {verdict}", flush=True)


def add_options(parser):
    parser.add_argument("--schedule", type=words(OUR_SCHEDULES), default=list(OUR_SCHEDULES), help="else all of ours")
    parser.add_argument("--width", type=number(1, 1 << 16), default=USUAL_SIZES["width"], help="of the model")
    parser.add_argument("--depth", type=number(1, 1024), default=USUAL_SIZES["depth"], help="layers of the model")
    parser.add_argument("--rows", type=number(1, 1 << 20), default=USUAL_SIZES["rows"], help="of a micro-batch")
    parser.add_argument("--micro-batches", type=number(1, 1024), default=USUAL_SIZES["micro_batches"])
    parser.add_argument("--ranks", type=number(1, 1024), default=2, help="of each system")
    parser.add_argument("--threads", type=number(1, 1024), default=1, help="of a rank")
    parser.add_argument("--rounds", type=number(1, 100_000), default=8, help="turns of each contender")
    parser.add_argument("--steps", type=number(1, 100_000), default=3, help="training steps per turn")
