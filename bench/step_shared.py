"""Shared by the three parts of `./dev bench step`: sizes, turns, and the check of a rank's AdamW."""

from contenders import Failed, in_turn

USUAL_SIZES = {"mlp": (2048, 4), "gpt": (384, 6)}


def size_of(options, model):
    return options.size or USUAL_SIZES[model]


def check_optimizer(steps, title, fused):
    for answer in steps.ready:
        if answer["fused"] != fused:
            raise Failed(f"{title}: expected the {'fused' if fused else 'default'} AdamW, found the other")


def run_rounds(contenders, options):
    for contender in contenders:
        contender.take_turn("1")  # warm-up: the first step after the others' start is slower
        contender.forget()
    for contender in in_turn(contenders, options.rounds):
        contender.take_turn(str(options.steps))
