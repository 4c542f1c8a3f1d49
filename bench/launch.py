"""`./dev bench launch`: starts, restarts and store requests, compared with torchrun and c10d's TCPStore.

start    from the launcher's start until all ranks have passed their first barrier
restart  from the SIGKILL of a rank until all ranks have done the first step of the next round
store    requests per second: half set(), half get(), of 64 bytes; clients and server in C++ for both systems
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from contenders import Failed, end_with_parent, environment
from figures import spread_of
from option_types import number, words
from peers_found import PEERS, find_python

ROWS = ("start", "restart", "store")
SYSTEMS = ("torchrun", "lockstep")
PATIENCE = 120  # seconds
AT_WORK = 1.5  # seconds from the first step to the kill, so that it happens during normal work
RESTARTS = 5  # one is needed; Gloo's ranks may fail again while they connect


def launcher(options, system, ranks, what, folder, *more):
    if system == "lockstep":
        agent = [options.build / "bin/lockstep", "run", "-n", ranks, "--prefix", "none", *more]
        return [str(word) for word in [*agent, options.rank_program, "launch", what, folder]]
    agent = [find_python(options.python), "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    more = [f"--nproc-per-node={ranks}", *more]
    return [str(word) for word in [*agent, *more, PEERS / "launch.py", what, folder]]


@contextlib.contextmanager
def launched(command):
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=environment(1, {}), stdin=subprocess.DEVNULL, stdout=said,
                                   stderr=subprocess.STDOUT, preexec_fn=end_with_parent, start_new_session=True)
        try:
            yield process
            if process.wait(PATIENCE):
                raise Failed(f"exit code {process.returncode}")
        except Failed as error:
            said.seek(0)
            raise Failed(f"{' '.join(command)}: {error}\n{said.read().decode()[-4000:]}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(folder, process, *lists):
    """Waits for the files of one of the lists and returns their content: (nanoseconds, pid)."""
    end = time.monotonic() + PATIENCE
    while True:
        for names in lists:
            files = [folder / name for name in names]
            if all(file.exists() for file in files):
                return [tuple(int(word) for word in file.read_text().split()) for file in files]
        if process.poll() not in (None, 0) or time.monotonic() > end:
            raise Failed(f"ranks did not write {', '.join(lists[0])}")
        time.sleep(0.0005)


def start(options, system, ranks):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        began = time.monotonic_ns()
        with launched(launcher(options, system, ranks, "start", folder)) as process:
            marks = wait_for(folder, process, [f"started.{rank}" for rank in range(ranks)])
        return (max(when for when, _ in marks) - began) / 1e9


def restart(options, system, ranks):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rounds = [[f"step.{round}.{rank}" for rank in range(ranks)] for round in range(RESTARTS + 1)]
        with launched(launcher(options, system, ranks, "steps", folder, f"--max-restarts={RESTARTS}")) as process:
            marks = wait_for(folder, process, rounds[0])
            time.sleep(AT_WORK)
            killed = time.monotonic_ns()
            os.kill(marks[-1][1], signal.SIGKILL)
            marks = wait_for(folder, process, *rounds[1:])
            (folder / "stop").touch()
        return (max(when for when, _ in marks) - killed) / 1e9


def store(options, system, clients):
    """Returns the seconds per request."""
    kind = "lockstep" if system == "lockstep" else "c10d"

    def started(*told):
        return subprocess.Popen([str(options.rank_program), "launch", *map(str, told)], env=environment(1, {}),
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent)

    with started("serve", kind) as server:
        port = server.stdout.readline().strip()
        asking = [started("ask", kind, port, options.threads, options.milliseconds) for _ in range(clients)]
        served = sum(int(client.communicate(timeout=PATIENCE)[0]) for client in asking)
        server.stdin.close()
    return options.milliseconds / 1e3 / served


MEASURES = {"start": start, "restart": restart, "store": store}


@dataclasses.dataclass
class Row:
    kind: str
    count: int  # ranks, or clients of the store
    seconds: dict  # per system, in the order of the rounds

    def ratio(self):
        pairs = zip(self.seconds["torchrun"], self.seconds["lockstep"])
        return spread_of([theirs / ours for theirs, ours in pairs])

    def json(self, verdict):
        return {"bench": "launch", "row": self.kind, "count": self.count, "verdict": verdict,
                "ratio": dataclasses.asdict(self.ratio()),
                **{f"{system}_s": dataclasses.asdict(spread_of(values)) for system, values in self.seconds.items()}}

    def line(self, verdict):
        def shown(values):
            spread = spread_of(values)
            if self.kind == "store":
                return f"{1 / spread.p50:>9.0f}/s"
            return f"{spread.p50:>8.3f} s"

        ratio = self.ratio()
        what = "clients" if self.kind == "store" else "ranks"
        theirs, ours = (shown(self.seconds[system]) for system in SYSTEMS)
        ratios = f"{ratio.p50:>6.2f} ({ratio.min:.2f} .. {ratio.max:.2f})"
        return f"{self.kind:<9}{self.count:>3} {what:<8}{theirs} {ours}  {ratios}  {verdict}"


def compare(options, judgements):
    if not options.json:
        print(f"{'launch':<9}{'':>12}{'torchrun':>10} {'lockstep':>10}  torchrun / ours: median (least .. most)")
    for kind in options.rows:
        for count in options.clients if kind == "store" else options.ranks:
            row = Row(kind, count, {system: [] for system in SYSTEMS})
            for _ in range(options.rounds):
                for system in SYSTEMS:
                    row.seconds[system].append(MEASURES[kind](options, system, count))
            verdict = judgements.judge(
                "launch", "torchrun / ours", {"row": kind, "count": count}, f"{kind} {count}", row.ratio().p50
            )
            print(json.dumps(row.json(verdict)) if options.json else row.line(verdict or "no goal"), flush=True)


def add_options(parser):
    parser.add_argument("--rows", type=words(ROWS), default=list(ROWS), help="of the table")
    parser.add_argument("--ranks", type=words(range(1, 65)), default=[2, 8], help="of start and restart")
    parser.add_argument("--clients", type=words(range(1, 65)), default=[4], help="processes that ask the store")
    parser.add_argument("--threads", type=number(1, 64), default=8, help="of a client")
    parser.add_argument("--milliseconds", type=number(10, 60_000), default=1000, help="that clients ask")
    parser.add_argument("--rounds", type=number(1, 1000), default=5, help="turns of each system")
