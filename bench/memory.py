"""`./dev bench memory`: the memory of a rank by `lockstep-measure memory`, compared with the formulas, and under a
limit.

counters     bytes per parameter of parameters, gradients and optimizer state, over the formula
pss          measured growth of memory since before the model was made, over the formula plus gathered units; private
             storage, 2 ranks; malloc returns freed memory
pss kept     likewise with init()'s malloc settings, which are faster and keep freed memory
node-shared  summed over 4 ranks, without gradients, over one replica's parameters and optimizer state
limited      4 ranks train a model whose parameters, gradients and optimizer state are three times the memory that a
             control group allows one rank
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess

from contenders import Failed, end_with_parent, environment, free_port, place
from figures import as_bytes
from option_types import model_size, number, words
from step import MEMORY_MODES

ROWS = ("counters", "pss", "node-shared", "limited")
PSS_RANKS, SHARED_RANKS, LIMITED_RANKS = 2, 4, 4
REPLICA_BYTES = 12  # a parameter in fp32 and its two averages
UNSHARDED_BYTES = 16
MODEL_OVER_LIMIT = 3
# init() lets malloc keep freed memory, because fresh pages cost time in every step. Users with little memory can set
# these variables instead and pay that time.
GIVES_BACK = {"MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclasses.dataclass
class Row:
    kind: str
    size: tuple
    measured: dict  # from `lockstep-measure memory --json`
    bytes: float
    expected: float
    limit: int = 0

    def ratio(self):
        return self.bytes / self.expected

    def json(self, verdict):
        names = ("mode", "ranks", "min_s", "p50_s", "dtype", "parameters", "units_bytes", "peak_units_bytes")
        row = {
            "bench": "memory",
            "system": "lockstep",
            "row": self.kind,
            "model": "mlp {1} x {0}".format(*self.size),
            "bytes": self.bytes,
            "expected_bytes": self.expected,
            "ratio": self.ratio(),
            **{name: self.measured[name] for name in names},
        }
        if verdict:
            row["met"] = "missed" not in verdict.split(";")[0]
        return {**row, "limit_bytes": self.limit} if self.limit else row

    def line(self, verdict):
        found, parameters = self.measured, self.measured["parameters"]
        text = (
            f"{self.kind:<12}{'mlp {1} x {0}'.format(*self.size):<16}{found['mode']:<18}{found['dtype']:<9}"
            f"{found['ranks']:>2}{as_bytes(int(self.bytes)):>11}{self.bytes / parameters:>9.3f}"
            f"{self.expected / parameters:>9.3f}{self.ratio():>8.3f}  {verdict or 'no goal'}"
        )
        if found["peak_units_bytes"]:
            text += f"; in flight {as_bytes(found['peak_units_bytes'])}"
        return text + (f"; limit {as_bytes(self.limit)}: trained" if self.limit else "")


HEADING = (
    f"{'memory':<12}{'model':<16}{'mode':<18}{'dtype':<9}{'N':>2}{'bytes':>11}{'/ param':>9}"
    f"{'expected':>9}{'ratio':>8}"
)


def words_of(options, size, *more):
    return [
        str(word)
        for word in (
            options.measure_program,
            "memory",
            "--json",
            "--size",
            "{}x{}".format(*size),
            "--steps",
            options.steps,
            *more,
        )
    ]


def measured_by(command, variables=None):
    """Returns the rows that `lockstep-measure memory` prints."""
    done = subprocess.run(
        command, env=environment(1, variables or {}), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure_one(options, size, mode, ranks, variables):
    """Measures in new processes, so that nothing remains of an earlier measurement."""
    words = words_of(options, size, "--mode", mode, "--dtype", "float32", "--ranks", ranks)
    return measured_by(words, variables)[0]


def counters(options):
    for ranks in range(1, options.most_ranks + 1):
        words = words_of(options, options.counted, "--mode", ",".join(MEMORY_MODES), "--ranks", ranks)
        for found in measured_by(words):
            yield Row("counters", options.counted, found, found["bytes"], found["expected_bytes"])


def pss(options):
    for mode in ("optimizer", "gradients", "full"):
        for kind, variables in (("pss", GIVES_BACK), ("pss kept", {})):
            found = measure_one(options, options.measured, mode, PSS_RANKS, variables)
            yield Row(
                kind, options.measured, found, found["pss_bytes"], found["expected_bytes"] + found["units_bytes"]
            )


def node_shared(options):
    """A replica needs no gradients between steps, so they are not counted."""
    found = measure_one(options, options.measured, "full-node-shared", SHARED_RANKS, GIVES_BACK)
    yield Row(
        "node-shared", options.measured, found, found["idle_pss_bytes_of_all"], REPLICA_BYTES * found["parameters"]
    )


@dataclasses.dataclass(frozen=True)
class MemoryControl:
    """The folder of this process's memory control group."""

    folder: pathlib.Path
    unified: bool  # version 2

    @classmethod
    def read(cls, proc_self_cgroup):
        """Parses lines such as '4:cpu,memory:/user' (version 1) and '0::/user' (version 2); returns None without such
        a line.
        """
        unified = None
        for line in proc_self_cgroup.splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return cls(pathlib.Path("/sys/fs/cgroup/memory" + path), False)
            if not controllers:
                unified = cls(pathlib.Path("/sys/fs/cgroup" + path), True)
        return unified

    @contextlib.contextmanager
    def limited_group(self, name, limit):
        """Makes a group below this one; all processes in it must have ended when the scope ends."""
        folder = self.folder / name
        try:
            folder.mkdir()
            (folder / ("memory.max" if self.unified else "memory.limit_in_bytes")).write_text(
                str(limit), encoding="ascii"
            )
        except OSError as error:
            raise Failed(f"cannot make the control group {folder}: {error.strerror}") from error
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def peak(self, folder):
        """Returns the maximum number of bytes charged to the group."""
        return int(
            (folder / ("memory.peak" if self.unified else "memory.max_usage_in_bytes")).read_text(encoding="ascii")
        )


def limited(options):
    """Shards, gradients and units are in the shared arena, and the optimizer's averages are outside. By default, the
    arena may use a smaller share of the memory.
    """
    control = MemoryControl.read(pathlib.Path("/proc/self/cgroup").read_text(encoding="ascii"))
    if control is None:
        raise Failed("this process is in no memory control group")
    width, depth = options.limited
    limit = int(UNSHARDED_BYTES * depth * (width + 1) * width / MODEL_OVER_LIMIT)
    variables = {**GIVES_BACK, "LOCKSTEP_ARENA": str(limit // 2)}
    words = words_of(options, options.limited, "--mode", "full", "--dtype", "float32", "--deferred-init")
    port = free_port()
    with contextlib.ExitStack() as groups:
        folders = [
            groups.enter_context(control.limited_group(f"lockstep-{os.getpid()}-rank-{rank}", limit))
            for rank in range(LIMITED_RANKS)
        ]
        # The ranks join their groups before they load anything.
        ranks = [
            subprocess.Popen(
                ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', folder / "cgroup.procs", *words],
                env=environment(1, {**variables, **place(rank, LIMITED_RANKS, port)}),
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=end_with_parent,
            )
            for rank, folder in enumerate(folders)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise Failed(f"limited: ranks ended with {[rank.returncode for rank in ranks]}")
        most = max(map(control.peak, folders))
    yield Row("limited", options.limited, json.loads(outputs[0]), most, limit, limit)


def compare(options, judgements):
    if not options.json:
        print(HEADING)
    kinds = {"counters": counters, "pss": pss, "node-shared": node_shared, "limited": limited}
    for kind in options.measure or ROWS:
        for row in kinds[kind](options):
            found = row.measured
            what = f"{row.kind}, {found['mode']}, {found['dtype']}, {found['ranks']} ranks: found / expected"
            verdict = judgements.judge("memory", row.kind, {}, what, row.ratio())
            print(json.dumps(row.json(verdict)) if options.json else row.line(verdict), flush=True)


def add_options(parser):
    parser.add_argument("--measure", type=words(ROWS), help=f"{', '.join(ROWS)}; else all")
    parser.add_argument("--most-ranks", type=number(1, 64), default=4, help="counters: for 1 rank to this many")
    for name, size, about in (
        ("counted", (512, 8), "of the counters"),
        ("measured", (2048, 48), "whose pages are measured"),
        ("limited", (2048, 64), "of three times a rank's memory"),
    ):
        parser.add_argument(
            f"--{name}",
            type=model_size,
            default=size,
            metavar="WxL",
            help=f"model {about}, width x layers ({size[0]}x{size[1]})",
        )
    parser.add_argument("--steps", type=number(1, 1000), default=3, help="training steps before memory is read")
