"""The cost of the trigger (dispatch/key.h) in a step of gpt at level full."""

import json

from contenders import Ranks
from step_shared import USUAL_SIZES, size_of


def measure_trigger(options, judgements):
    width, depth = size_of(options, "gpt")
    words = ["--width", width, "--depth", depth, "--threads", options.threads]
    ranks = Ranks.start_each("trigger", [options.rank_program, "trigger", *words], 1, options.threads)
    try:
        ranks.answers()  # ready
        cost = ranks.ask(str(options.steps))[0]
    finally:
        ranks.close()
    share = (cost["views"] * cost["seconds_a_view"] + cost["uses"] * cost["seconds_a_use"]) / cost["p50_s"]
    verdict = judgements.judge(
        "trigger",
        "share of the step, %",
        {"usual_size": (width, depth) == USUAL_SIZES["gpt"]},
        "trigger: share of the step, %",
        share * 100,
    )
    if options.json:
        print(
            json.dumps(
                {
                    "bench": "step",
                    "system": "lockstep",
                    "model": "gpt",
                    "mode": "trigger",
                    "ranks": 1,
                    "bytes": 0,
                    **cost,
                    "share": share,
                    "width": width,
                    "depth": depth,
                }
            ),
            flush=True,
        )
        return
    view, use = (cost[f"seconds_a_{kind}"] * 1e9 for kind in ("view", "use"))
    print(
        f"trigger ({cost['trigger']}): gpt {width}x{depth}, level full: {cost['views']} views of "
        f"{view:.0f} ns and {cost['uses']} uses of {use:.0f} ns a step "
        f"of {cost['p50_s']:.3f} s\n{'share of the step, %':<46}{share * 100:>8.4f}   {verdict}\n",
        flush=True,
    )
