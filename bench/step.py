"""`./dev bench step`: our training steps and PyTorch's, in turn, in one run."""

import dataclasses
import json

from contenders import Failed, Ranks, Steps, our_malloc, products_of
from figures import as_bytes, quotients, spread_of
from option_types import model_size, number, words
from peers_found import find_python, peer_command
from step_shared import USUAL_SIZES, check_optimizer, run_rounds, size_of
from step_tail import USUAL_TAIL, compare_tails
from step_trigger import measure_trigger

OUR_MODES = ("none", "ddp", "optimizer", "gradients", "full", "full-node-shared", "tensor")
MEMORY_MODES = OUR_MODES[:-1]  # modes with a formula for a rank's memory
PYTORCH_MODES = ("none", "ddp", "zero1", "fsdp2", "tensor")
ONE_BATCH = ("none", "tensor")  # rank 0 trains on its own batches only, like a single process
# PyTorch's mode that shards the same parts; without such a mode (gradients), the one that shards less.
COUNTERPARTS = dict(zip(OUR_MODES, ("none", "ddp", "zero1", "zero1", "fsdp2", "fsdp2", "tensor")))
GPT_HEADS = 6
OPTIMIZERS = {
    "default": "torch.optim.AdamW, its defaults, beside torch::optim::AdamW",
    "fused": "torch.optim.AdamW(fused=True) beside lockstep::optim::AdamW",
}
# The malloc settings of PyTorch's processes: the defaults, or those that init() sets in ours (contenders.our_malloc).
MALLOCS = ("glibc", "lockstep")
EQUAL_LOSSES = 1e-4  # relative


@dataclasses.dataclass(frozen=True)
class Name:
    system: str  # ours, pytorch
    mode: str
    malloc: str = "lockstep"

    def title(self):
        if self.system == "ours":
            return f"ours {self.mode}"
        return f"PyTorch {self.mode}" + (", malloc as ours" if self.malloc == "lockstep" else "")


def counterparts_of(modes):
    return list(dict.fromkeys(COUNTERPARTS[mode] for mode in modes))


def names_of(options):
    """Returns the names: ours, then PyTorch's with each malloc."""
    ours = options.mode or OUR_MODES
    theirs = options.against or (counterparts_of(options.mode) if options.mode else PYTORCH_MODES)
    return [Name("ours", mode) for mode in ours] + [
        Name("pytorch", mode, malloc) for malloc in options.malloc for mode in theirs
    ]


def start_one(name, options, fused):
    width, depth = size_of(options, options.model)
    told = ["--width", width, "--depth", depth, "--model", options.model, "--mode", name.mode]
    told += ["--threads", options.threads]
    told += ["--fused"] if fused else []
    if name.system == "ours":
        ranks = Ranks.start_each(name.title(), [options.rank_program, "step", *told], options.ranks, options.threads)
    else:
        command = peer_command(find_python(options.python), "step.py", *told)
        malloc = our_malloc(options.rank_program) if name.malloc == "lockstep" else {}
        ranks = Ranks.start_each(name.title(), command, options.ranks, options.threads, malloc)
    try:
        steps = Steps(ranks)
        check_optimizer(steps, name.title(), fused)
    except Failed:
        ranks.close()
        raise
    steps.name = name
    return steps


def check_losses(contenders):
    """Compares losses. Weights and batches are equal everywhere; modes that train on one rank's batches and modes
    that train on all batches differ after their first update.
    """
    for one in contenders:
        for other in contenders:
            steps = 1 if (one.name.mode in ONE_BATCH) != (other.name.mode in ONE_BATCH) else len(one.losses)
            for step, (own, others) in enumerate(list(zip(one.losses, other.losses))[:steps]):
                if not abs(own - others) <= EQUAL_LOSSES * abs(others):
                    raise Failed(
                        f"expected equal losses at step {step}, found {own} of {one.name.title()} and {others} of "
                        f"{other.name.title()}"
                    )


def ratios_of(contenders):
    """Returns (numerator, denominator) of all ratios to print if both sides were measured."""
    found = {contender.name: contender for contender in contenders}
    pairs = [
        (Name("pytorch", theirs, malloc), Name("ours", mode))
        for mode, theirs in COUNTERPARTS.items()
        for malloc in MALLOCS
    ]
    over_ddp = ("optimizer", "gradients", "full", "full-node-shared")
    pairs += [(Name("ours", mode), Name("ours", "ddp")) for mode in over_ddp]
    pairs += [(Name("ours", "ddp"), Name("ours", "none"))]
    return [(found[a], found[b]) for a, b in pairs if a in found and b in found]


def print_table(options, optimizer, contenders):
    width, depth = size_of(options, options.model)
    print(
        f"step: model={options.model} {width}x{depth} ranks={options.ranks} threads={options.threads} "
        f"rounds={options.rounds} steps={options.steps}{products_of(contenders)}\n"
        f"AdamW, {optimizer}: {OPTIMIZERS[optimizer]}"
    )
    print(f"{'seconds':<32}{'min':>10}{'p25':>10}{'p50':>10}{'p75':>10}{'max':>10}{'bytes':>12}   first losses")
    for contender in contenders:
        seconds = spread_of(contender.seconds)
        times = "".join(f"{value:>10.4f}" for value in dataclasses.astuple(seconds))
        losses = " ".join(f"{loss:.6f}" for loss in contender.losses[:2])
        print(f"{contender.name.title():<32}{times}{as_bytes(contender.bytes):>12}   {losses}")


def judge_ratio(options, numerator, denominator, found, judgements, optimizer):
    usual = size_of(options, options.model) == USUAL_SIZES[options.model]
    malloc = numerator.malloc if numerator.system == "pytorch" else "glibc"
    facts = {"model": options.model, "ranks": options.ranks, "usual_size": usual, "malloc": malloc}
    facts["optimizer"] = optimizer
    figure = f"{numerator.system} {numerator.mode} / {denominator.system} {denominator.mode}"
    what = f"{options.model}, {options.ranks} ranks, {optimizer} AdamW: {numerator.title()} / {denominator.title()}"
    return judgements.judge("step", figure, facts, what, found)


def print_json(options, optimizer, contenders):
    width, depth = size_of(options, options.model)
    for contender in contenders:
        seconds = spread_of(contender.seconds)
        name = contender.name
        print(
            json.dumps(
                {
                    "bench": "step",
                    "system": "lockstep" if name.system == "ours" else name.system,
                    "model": options.model,
                    "mode": name.mode,
                    "malloc": name.malloc,
                    "ranks": options.ranks,
                    "min_s": seconds.min,
                    "p50_s": seconds.p50,
                    "bytes": contender.bytes,
                    "p25_s": seconds.p25,
                    "p75_s": seconds.p75,
                    "max_s": seconds.max,
                    "optimizer": optimizer,
                    "threads": options.threads,
                    "rounds": options.rounds,
                    "steps": len(contender.seconds),
                    "round_means_s": contender.by_round,
                    "losses": contender.losses,
                    "products": contender.ready[0].get("products"),
                    "width": width,
                    "depth": depth,
                }
            ),
            flush=True,
        )


def compare_modes(options, judgements):
    for optimizer in options.optimizer:
        contenders = []
        try:
            # Starts one after the other, so that the memory for building models is not needed all at once.
            for name in names_of(options):
                contenders.append(start_one(name, options, optimizer == "fused"))
            run_rounds(contenders, options)
        finally:
            for contender in contenders:
                contender.ranks.close()
        check_losses(contenders)
        if options.json:
            print_json(options, optimizer, contenders)
        else:
            print_table(options, optimizer, contenders)
            print(f"\n{'time / time':<58}{'p50':>8}   quartiles of the rounds")
        for numerator, denominator in ratios_of(contenders):
            found = quotients(numerator.by_round, denominator.by_round)
            verdict = judge_ratio(options, numerator.name, denominator.name, found.p50, judgements, optimizer)
            if not options.json:
                print(
                    f"{numerator.name.title() + ' / ' + denominator.name.title():<58}{found.p50:>8.3f}   "
                    f"{found.p25:.3f} .. {found.p75:.3f}   {verdict}"
                )
        if not options.json:
            print(flush=True)


def compare(options, judgements):
    parts = options.measure or (["modes"] if options.mode or options.against else ["modes", "tail", "trigger"])
    has_gpt = "trigger" in parts or "modes" in parts and options.model == "gpt"
    if has_gpt and size_of(options, "gpt")[0] % GPT_HEADS:
        width = size_of(options, "gpt")[0]
        raise Failed(f"--size: expected a width that is a multiple of gpt's {GPT_HEADS} heads, found {width}")
    for part, act in (("modes", compare_modes), ("tail", compare_tails), ("trigger", measure_trigger)):
        if part in parts:
            act(options, judgements)


def add_options(parser):
    parser.add_argument(
        "--measure",
        type=words(("modes", "tail", "trigger")),
        help="modes (the tables of steps), tail (sync and AdamW), trigger (what noticing parameters costs); "
        "else all, or with --mode only modes",
    )
    parser.add_argument("--model", choices=list(USUAL_SIZES), default="mlp")
    parser.add_argument("--size", type=model_size, metavar="WxL", help="of the model (mlp 2048x4, gpt 384x6)")
    parser.add_argument(
        "--mode", type=words(OUR_MODES), help=f"ours: {', '.join(OUR_MODES)}; else all of both systems"
    )
    parser.add_argument(
        "--against",
        type=words(PYTORCH_MODES),
        help=f"PyTorch's: {', '.join(PYTORCH_MODES)}; else the counterparts of --mode",
    )
    parser.add_argument(
        "--malloc",
        type=words(MALLOCS),
        default=list(MALLOCS),
        help="PyTorch's: glibc (as it is), lockstep (the settings that our ranks have)",
    )
    parser.add_argument("--optimizer", type=words(OPTIMIZERS), default=list(OPTIMIZERS), help="AdamW of both systems")
    parser.add_argument(
        "--tensors", type=number(1, 100_000), default=USUAL_TAIL[0], help="of the tail: parameter tensors"
    )
    parser.add_argument("--elements", type=number(1, 1 << 30), default=USUAL_TAIL[1], help="of such a tensor")
    parser.add_argument("--ranks", type=number(1, 1024), default=2, help="of each system")
    parser.add_argument("--threads", type=number(1, 1024), default=1, help="of a rank")
    parser.add_argument("--rounds", type=number(1, 100_000), default=10, help="turns of each contender")
    parser.add_argument("--steps", type=number(1, 100_000), default=3, help="training steps per turn")
