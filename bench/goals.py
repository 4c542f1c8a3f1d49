"""The performance goals of Lockstep in one table, and the source of each number.

A goal is about a figure of one benchmark, for rows whose values match `where`: a value, or a pair (least, most).
`least` and `most` must hold; `aim` is the intended value. With --check, the command fails if a `least` or `most` does
not hold.
"""

import dataclasses

KIB, MIB = 1 << 10, 1 << 20

# The source of a goal. Plans were made before the code, from measurements of prototypes on two cores.
COLLECTIVES = "plan of the collectives"
DDP = "plan of DistributedDataParallel"
SHARDING = "plan of full sharding"
OPTIMIZERS = "plan of the optimizers"
TENSOR = "plan of tensor parallel"
CHECKPOINTS = "plan of the checkpoints"
PIPELINES = "plan of pipelines"
ELASTIC = "plan of elastic runs"
FAMILY = "plan of data parallelism"
CHANGES = "a change makes nothing slower"
DEFINITION = "definition: less or more is a wrong measurement"


@dataclasses.dataclass(frozen=True)
class Goal:
    bench: str
    figure: str
    where: dict
    source: str
    least: float | None = None
    most: float | None = None
    aim: float | None = None

    def speaks_of(self, bench, figure, row):
        def holds(name, wanted):
            found = row.get(name)
            return wanted[0] <= found <= wanted[1] if isinstance(wanted, tuple) else found == wanted

        return (bench, figure) == (self.bench, self.figure) and all(holds(*item) for item in self.where.items())

    def met(self, found):
        return (self.least is None or found >= self.least) and (self.most is None or found <= self.most)

    def aim_reached(self, found):
        return found >= self.aim if self.most is None else found <= self.aim

    def verdict(self, found):
        """Returns '>= 1.8: met; aim 2.1: missed'."""
        if self.least is not None and self.most is not None:
            wanted = f"{self.least:g} to {self.most:g}"
        else:
            wanted = f">= {self.least:g}" if self.most is None else f"<= {self.most:g}"
        text = f"{wanted}: {'met' if self.met(found) else 'missed'}"
        if self.aim is not None:
            text += f"; aim {self.aim:g}: {'met' if self.aim_reached(found) else 'missed'}"
        return text


def _collectives(
    figure,
    source=COLLECTIVES,
    *,
    op="all_reduce",
    bytes=(64 * MIB, 256 * MIB),
    ranks=2,
    memory="arena",
    beside_busy=False,
    **limits,
):
    where = {"op": op, "bytes": bytes, "ranks": ranks, "memory": memory, "outsider": beside_busy}
    return Goal("collectives", figure, where, source, **limits)


SMALL, LARGE = (0, KIB), (64 * MIB, 64 * MIB)
CROWDED = (4, 8)  # ranks, meant for two cores
MLP_OF_2 = {"model": "mlp", "ranks": 2, "usual_size": True, "malloc": "glibc"}

GOALS = [
    _collectives("gloo / ours", least=4.5, aim=12),
    _collectives("mpi / ours", least=3.5, aim=8),
    # A share above 1 would mean a wrong bound.
    _collectives("share of 2pn/B", least=0.6, most=1),
    _collectives("gloo / ours", memory="ordinary", least=1.5, aim=4),
    _collectives("gloo / ours", bytes=SMALL, least=100, aim=700),
    _collectives("mpi / ours", bytes=SMALL, least=1, aim=2.5),
    _collectives("gloo / ours", bytes=SMALL, ranks=CROWDED, least=20, aim=100),
    _collectives("gloo / ours", bytes=LARGE, ranks=CROWDED, least=4, aim=6),
    _collectives("p99 / p50", bytes=SMALL, ranks=CROWDED, most=10, aim=3),
    _collectives("p99 / p50", bytes=LARGE, ranks=CROWDED, most=10, aim=3),
    _collectives("mean / p50", bytes=SMALL, ranks=CROWDED, beside_busy=True, most=20, aim=5),
    _collectives("mean / p50", bytes=LARGE, ranks=CROWDED, beside_busy=True, most=20, aim=5),
    _collectives("gloo / ours", op="all_gather", bytes=LARGE, least=5, aim=10),
    _collectives("gloo / ours", op="reduce_scatter", bytes=LARGE, least=5, aim=10),
    _collectives("gloo / ours", op="broadcast", bytes=LARGE, least=2.5, aim=4),
    _collectives("gloo / ours", op="all_to_all", bytes=LARGE, least=4, aim=8),
    # A barrier moves no bytes, so the goal is a time in microseconds instead of a ratio.
    _collectives("us", op="all_gather", memory="node-shared", most=100),
    Goal("step", "pytorch ddp / ours ddp", MLP_OF_2, DDP, least=1.1),
    Goal("step", "pytorch ddp / ours ddp", {**MLP_OF_2, "model": "gpt"}, DDP, least=0.97),
    Goal("step", "ours ddp / ours none", {**MLP_OF_2, "optimizer": "fused"}, FAMILY, most=1.1, aim=1),
    Goal("step", "pytorch zero1 / ours optimizer", MLP_OF_2, SHARDING, least=1.8, aim=2.1),
    Goal("step", "pytorch fsdp2 / ours full", MLP_OF_2, SHARDING, least=2.3, aim=2.7),
    Goal("step", "ours full-node-shared / ours ddp", MLP_OF_2, SHARDING, most=1.05, aim=1),
    Goal("step", "pytorch tensor / ours tensor", {"ranks": 2, "malloc": "lockstep"}, TENSOR, least=1.3),
    Goal("tail", "pytorch replicated / ours sharded", {"ranks": 2, "usual_size": True}, SHARDING, least=4, aim=5),
    Goal("tail", "bytes / (4p + 24)", {}, DEFINITION, least=0.999, most=1.001),
    Goal("trigger", "share of the step, %", {"usual_size": True}, SHARDING, most=2, aim=0.5),
    Goal("pipeline", "pytorch 1f1b / ours 1f1b", {"ranks": 2}, PIPELINES, least=1.3),
    Goal("pipeline", "pytorch zbv / ours zbv", {"ranks": 2}, PIPELINES, least=1.3),
    Goal("pipeline", "ours 1f1b / ours zbv", {"ranks": 2, "usual_size": True}, PIPELINES, least=1),
    Goal("memory", "counters", {}, DEFINITION, least=0.995, most=1.005),
    Goal("memory", "pss", {}, SHARDING, least=0.95, most=1.05, aim=1.02),
    Goal("memory", "node-shared", {}, SHARDING, least=0.95, most=1.1, aim=1),
    Goal("memory", "limited", {}, SHARDING, most=1),
    Goal("checkpoint", "dcp save / ours async", {"usual_size": True}, CHECKPOINTS, least=15, aim=1000),
    Goal("checkpoint", "dd / ours save", {"usual_size": True}, CHECKPOINTS, least=0.9, aim=1),
    Goal("checkpoint", "memcpy / ours load", {"usual_size": True}, CHECKPOINTS, least=0.7, aim=0.9),
    Goal("optimizer", "default / ours float32", {"usual_size": True, "threads": 1}, OPTIMIZERS, least=4),
    Goal("optimizer", "fused / ours float32", {"usual_size": True, "threads": 1}, OPTIMIZERS, least=1),
    Goal("optimizer", "share of the memory bound", {"usual_size": True, "threads": 1}, OPTIMIZERS, least=0.95),
    *(Goal("launch", "torchrun / ours", {"row": "start", "count": n}, ELASTIC, least=7, aim=16) for n in (2, 8)),
    *(Goal("launch", "torchrun / ours", {"row": "restart", "count": n}, ELASTIC, least=5, aim=20) for n in (2, 8)),
    Goal("launch", "torchrun / ours", {"row": "store", "count": 4}, ELASTIC, least=2, aim=10),
    Goal("before", "before / now", {}, CHANGES, least=0.97),
]


def goal_of(bench, figure, row):
    """Returns the goal for this figure of this row, or None."""
    return next((goal for goal in GOALS if goal.speaks_of(bench, figure, row)), None)


class Judgements:
    """The results of the goals that apply to the measurements."""

    def __init__(self):
        self.found = []  # (what, found, goal)

    def judge(self, bench, figure, row, what, found):
        """Returns the result of a goal as text, or an empty text if no goal applies."""
        goal = goal_of(bench, figure, row)
        if goal is None:
            return ""
        self.found.append((what, found, goal))
        return goal.verdict(found)

    def table(self):
        width = max((len(what) for what, _, _ in self.found), default=0) + 2
        lines = [f"{'goals':<{width}}{'found':>9}   goal"]
        return lines + [f"{what:<{width}}{found:>9.2f}   {goal.verdict(found)}" for what, found, goal in self.found]

    def missed(self):
        return [
            f"{what}: found {found:.3g}, {goal.verdict(found)} ({goal.source})"
            for what, found, goal in self.found
            if not goal.met(found)
        ]
