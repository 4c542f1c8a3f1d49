"""`./dev bench collectives`: our collectives, Gloo's and MPI's, in turn, in one run."""

import dataclasses
import subprocess
import sys
import tempfile
import time

from collectives_report import MEMORIES, judge, print_json, print_machine, print_ratios, print_row
from collectives_rows import MIB, OPS, Row, rows_of
from contenders import Failed, Ranks, in_turn
from figures import Summary, spread_of, summary_of
from option_types import byte_counts, number, seconds, words
from peers_found import PEERS, Mpi, find_python, peer_command

KNOWN_PEERS = ("gloo", "mpi", "openmpi", "mpich", "lockstep-gloo", "lockstep-mpi", "none")
FEWEST_CALLS, MOST_CALLS = 2, 5000  # per turn
FEWEST_ROUNDS, ROW_SECONDS = 5, 15  # no round begins after this time, except the mandatory ones
PROBE_BYTES, PROBES = 64 * MIB, 5


class Outsider:
    """A process outside of the ranks that never sleeps, on any core that the system gives it."""

    def __init__(self, wanted):
        self.wanted = wanted

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if self.wanted else None

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()


class Contender:
    """One of the systems that a row compares."""

    def __init__(self, name, memories, ranks):
        self.name, self.memories, self.ranks = name, memories, ranks
        self.library = ""

    def wait_until_ready(self):
        self.library = self.ranks.answers()[0]["library"]


class Participant:
    """A system on one kind of tensors, with its measurements so far."""

    def __init__(self, row, contender, memory):
        self.contender, self.memory = contender, memory
        self.words = f"{row.op} {row.bytes} {memory}"
        self.calls = FEWEST_CALLS
        self.seconds, self.medians = [], []

    def check(self):
        self.contender.ranks.ask(f"check {self.words}")

    def run(self, uncounted, calls):
        """Returns the seconds of each call on the slowest rank."""
        answers = self.contender.ranks.ask(f"run {self.words} {uncounted} {calls}")
        return [max(call) / 1e9 for call in zip(*(answer["ns"] for answer in answers))]

    def find_calls(self, turn):
        """Returns the number of calls that fill a turn. The first calls touch the memory and are slower; shorter
        calls need more repetitions for a good estimate.
        """

        def length(calls):
            return summary_of(self.run(1, calls)).mean

        call = length(2)
        if call < 1e-2:
            call = length(20)
        if call < 1e-4:
            call = length(200)
        self.calls = int(min(max(turn / max(call, 1e-9), FEWEST_CALLS), MOST_CALLS))

    def take_turn(self):
        seconds = self.run(min(max(self.calls // 10, 1), 100), self.calls)
        self.medians.append(spread_of(seconds).p50)
        self.seconds += seconds


@dataclasses.dataclass
class Line:
    """The results of one system on one kind of tensors."""

    backend: str  # "shm", or the name of a peer
    library: str
    memory: str
    seconds: Summary
    medians: list  # one per round


@dataclasses.dataclass
class MeasuredRow:
    row: Row
    lines: list  # ours, then the peers
    bound: float | None  # seconds: the lower bound 2pn/B

    def find(self, backend, memory):
        return next((line for line in self.lines if (line.backend, line.memory) == (backend, memory)), None)


def fastest_pass(ours, count):
    """Returns the seconds from the first rank's start to the last one's end, for the fastest pass over `count` bytes
    per rank.
    """
    kinds = zip(*(answer["spans"] for answer in ours.ranks.ask(f"bound {count}")))
    return min(max(end for _, end in ranks) - min(begin for begin, _ in ranks) for ranks in kinds)


def can_lie_in(memory, op):
    return memory == "ordinary" if op == "barrier" else memory != "node-shared" or op == "all_gather"


def measure_row(row, contenders, options):
    participants = [
        Participant(row, contender, memory)
        for contender in contenders
        for memory in contender.memories
        if can_lie_in(memory, row.op)
    ]
    for participant in participants:
        participant.check()
    bounds = []
    with Outsider(row.outsider):
        for participant in participants:
            participant.find_calls(options.turn)
        start = time.monotonic()
        for turn, participant in enumerate(in_turn(participants, options.rounds)):
            begins = turn % len(participants) == 0
            if begins and turn // len(participants) >= FEWEST_ROUNDS and time.monotonic() - start > ROW_SECONDS:
                break
            if begins and row.has_bound():
                bounds.append(fastest_pass(contenders[0], row.bytes))
            participant.take_turn()
    lines = [
        Line(each.contender.name, each.contender.library, each.memory, summary_of(each.seconds), each.medians)
        for each in participants
    ]
    return MeasuredRow(row, lines, min(bounds, default=None))


class Peers:
    """The other systems, found once and started for each number of ranks."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.names, self.mpi, self.python = [], {}, None
        for name in dict.fromkeys(options.peers):
            if name == "none":
                continue
            missing = self.find(name)
            if missing:
                print(f"left out: {name}: {missing}", file=sys.stderr)
            else:
                self.names.append(name)

    def find(self, name):
        """Returns an empty text, or why the system cannot take part."""
        if name == "gloo":
            try:
                self.python = find_python(self.options.python)
            except Failed as error:
                if self.options.python:
                    raise
                return str(error)
        if name in ("mpi", "openmpi", "mpich", "lockstep-mpi"):
            tools = Mpi.find("mpi" if name == "lockstep-mpi" else name)
            if tools is None:
                package = "mpich" if name == "mpich" else "openmpi-bin libopenmpi-dev"
                return f"no such MPI is on the PATH (Debian: apt-get install {package})"
            if name != "lockstep-mpi":
                tools.compile(PEERS / "mpi_collectives.c", f"{self.folder}/{name}")
            self.mpi[name] = tools
        return ""

    def start_ranks(self, name, ranks):
        own = [self.options.rank_program, "collectives"]
        if name in ("shm", "lockstep-gloo"):
            backend = {"LOCKSTEP_BACKEND": name.removeprefix("lockstep-")}
            return Ranks.start_each(name, own, ranks, variables=backend)
        if name == "gloo":
            return Ranks.start_each(name, peer_command(self.python, "collectives.py"), ranks)
        if name == "lockstep-mpi":
            return self.mpi[name].start(name, [*own, "--pipes"], ranks, self.folder, {"LOCKSTEP_BACKEND": "mpi"})
        return self.mpi[name].start(name, [f"{self.folder}/{name}"], ranks, self.folder)

    def start(self, ranks):
        """Starts our ranks first, then the peers; returns when all are ready."""
        contenders = [Contender("shm", MEMORIES, self.start_ranks("shm", ranks))]
        contenders += [Contender(name, ("ordinary",), self.start_ranks(name, ranks)) for name in self.names]
        contenders[0].wait_until_ready()
        for peer in contenders[1:]:
            try:
                peer.wait_until_ready()
            except Failed as error:
                print(f"left out: {peer.name}: {error}", file=sys.stderr)
                self.names.remove(peer.name)
                peer.ranks.close()
        return [contender for contender in contenders if contender.library]


@dataclasses.dataclass(frozen=True)
class Machine:
    """Properties of the host that all results depend on."""

    bytes_per_second: float
    core_to_core: float  # seconds; 0 with a single core


def measure_machine(ours):
    seconds = min(fastest_pass(ours, PROBE_BYTES) for _ in range(PROBES))
    core_to_core = ours.ranks.ask("machine")[0]["core_to_core_s"]
    return Machine(2 * len(ours.ranks) * PROBE_BYTES / seconds, core_to_core)


def compare(options, judgements):
    rows = rows_of(options)
    measured, machine, contenders, started = [], None, [], None
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        peers = Peers(options, folder)
        try:
            for row in rows:
                if row.ranks != started:
                    for contender in contenders:
                        contender.ranks.close()
                    contenders, started = peers.start(row.ranks), row.ranks
                if machine is None:
                    machine = measure_machine(contenders[0])
                    if not options.json:
                        print_machine(machine, row.ranks)
                measured.append(measure_row(row, contenders, options))
                if options.json:
                    print_json(measured[-1], machine)
                else:
                    print_row(measured[-1])
        finally:
            for contender in contenders:
                contender.ranks.close()
    for each in measured:
        judge(each, judgements)
    if not options.json:
        print_ratios(measured)


def add_options(parser):
    parser.add_argument(
        "--peers",
        type=words(KNOWN_PEERS),
        default=["gloo", "mpi"],
        help="beside ours: gloo (PyTorch's), mpi, openmpi, mpich, lockstep-gloo, lockstep-mpi, or none",
    )
    parser.add_argument("--op", type=words(OPS), help=", ".join(OPS))
    parser.add_argument("--sizes", type=byte_counts, metavar="BYTES", help="of a tensor: 1KiB,64MiB,4096")
    parser.add_argument("--ranks", type=words(range(1, 65)), metavar="NUMBERS", help="ranks of each system: 2,4")
    parser.add_argument("--outsider", action="store_true", help="every row also beside a busy process")
    parser.add_argument("--rounds", type=number(1, 100_000), default=10, help="turns of each system in a row")
    parser.add_argument("--turn", type=seconds, default=0.1, metavar="SECONDS", help="intended duration of a turn")
