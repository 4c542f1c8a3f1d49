#!/usr/bin/env python3
"""Runs every command line in README.md, docs/ and docs/reference/ exactly as written.

A command line is a line of a fenced block without a language, or of sh or bash; a line after "$ " in any block; or
code in a table that is a whole command. Other code that begins with `lockstep` names options, which must exist. The
lines of a document run in order, in one folder: `lockstep generate run` uses the run that the line before has
trained. A training is interrupted after its first step and must save its state. Commands that other tests run, or
that take many minutes, are in ELSEWHERE with the reason.
"""
import collections
import gzip
import os
import pathlib
import re
import shlex
import signal
import struct
import sys
import tempfile
import textwrap
import time

from support import Process, adopt_orphans, end_all, environment, example, expect, lockstep, run, shown

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = (r"(lockstep(-train)?|mpirun|srun|torchrun|\./dev|\./1\d_\w+|16_\w+|cmake|python3|[A-Z_]+=\S+|head|export|"
           r"build/release/bench/lockstep-measure|"
           r"gpu/bin/pip) ")

# Lines that other tests run, or that install or measure for many minutes: (pattern, reason).
ELSEWHERE = [
    (r"\./dev (demo|test|build|fmt|lint|mutants|soak|data|help|clean)\b", "sets the machine up, or runs tests"),
    (r"cmake |export PATH=|lockstep run -n \d build/\w+_program", "tests/install"),
    (r"python3 -m venv gpu|gpu/bin/pip ", "installs a LibTorch for CUDA of several GB"),
    (r"srun ", "tests/integration/srun_test.py"),
    (r"(mpirun|torchrun) ", "tests/integration/mpirun_test.py, rounds_test.py"),
    (r"lockstep (store|run) .*(host-a|store-host):29400", "tests/integration/several_hosts_test.py"),
    (r"lockstep report hang logs/", "tests/apps/report_hang_test.cc, on records of a hang"),
]

# Measurements that take minutes, with smaller settings.
MEASURE = "build/release/bench/lockstep-measure"
SMALL = {f"{MEASURE} step": " --size 96x2 --rounds 1 --steps 1",
         f"{MEASURE} memory": " --size 96x2 --steps 1",
         f"{MEASURE} optimizer": " --tensors 2 --elements 4096 --rounds 1 --steps 1"}

# Lines that show an error, and their exit codes.
FAILS = {"lockstep plan pipeline --schedule mine.csv": 1}

# Values for the placeholders of a synopsis.
NAMES = {"RUN": "trained", "PATH": "trained", "PATH...": "trained", "FROM": "trained", "N": "2", "OUT": "trained",
         "FILE": "corpus.txt", "TEXT": "Once", "FOLDER": "model"}
# Documents whose commands assume a finished run and a model's folder.
NEED_A_RUN = ("docs/checkpoints.md", "docs/generating.md")


def plain(line):
    """Returns the command without its comment."""
    return re.sub(r"\s+#\s.*$", "", line).strip()


def commands_of_block(language, first, lines):
    """Returns the commands of a block. If lines begin with "$ ", the others are output; else each line with a
    program's name is a command.
    """
    if any(line.startswith("$ ") for line in lines):
        starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
        return [(first + i, lines[i][2:].strip(), "\n".join(lines[i + 1:end]).strip())
                for i, end in zip(starts, [*starts[1:], len(lines)])]
    if language not in ("", "sh", "bash"):
        return []
    return [(first + i, plain(line), "") for i, line in enumerate(lines) if re.match(PROGRAM, line)]


def commands_of(document):
    """Returns (line number, command, output in the document; None for code in a sentence)."""
    found, block, language = [], None, ""
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if fence := re.match(r"\s*```(\w*)", line):
            if block is not None:
                lines = textwrap.dedent("\n".join(block)).split("\n")
                found += commands_of_block(language, number - len(block), lines)
            block, language = ([], fence[1]) if block is None else (None, "")
        elif block is not None:
            block.append(line)
        else:
            whole = r"lockstep (train [a-z]+|run|generate|eval) -" if line.startswith("|") else "$^"
            found += [(number, code, "" if re.match(whole, code) else None) for code in re.findall(r"`([^`]+)`", line)
                      if re.match(r"lockstep [a-z]+ .*--\w", code)]
    return found


def write_digits(folder):
    """Writes MNIST's four files with 600 and 200 synthetic pictures."""
    folder.mkdir(parents=True)
    for part, count in (("train", 600), ("t10k", 200)):
        labels = bytes(i % 10 for i in range(count))
        pictures = b"".join(bytes((x * (label + 1)) % 256 for x in range(784)) for label in labels)
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb", 1) as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + pictures)
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)


def write_bpe(folder):
    """Writes a vocabulary of bytes and one merge, in GPT-2's format."""
    folder.mkdir()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    words = symbols + ["th", "<|endoftext|>"]
    entries = ", ".join(f'"\\u{ord(w):04x}": {i}' if len(w) == 1 else f'"{w}": {i}' for i, w in enumerate(words))
    (folder / "vocab.json").write_text("{" + entries + "}")
    (folder / "merges.txt").write_text("#version: 0.2\nt h\n")


def prepare(folder):
    """Makes the files that the documents assume: a text, token files, a vocabulary, digits, programs."""
    words = "the quick brown fox jumps over a lazy dog while rain falls on old stones".split()
    text = "Once upon a time. " + "".join(words[i * i % 7 + i % 8] + (".\n" if i % 11 == 10 else " ")
                                          for i in range(12000))
    for name in ("corpus.txt", "my.txt"):
        (folder / name).write_text(text)
    (folder / "tokens").mkdir()
    for name, count in (("train.bin", 40000), ("val.bin", 8000)):
        (folder / "tokens" / name).write_bytes(struct.pack(f"<{count}H", *(i * i % 999 for i in range(count))))
    write_bpe(folder / "gpt2")
    write_digits(folder / "data/mnist")
    (folder / "tools").symlink_to(ROOT / "tools")
    (folder / MEASURE).parent.mkdir(parents=True)
    (folder / MEASURE).symlink_to(pathlib.Path(lockstep()).parents[1] / "bench/lockstep-measure")
    (folder / "train").symlink_to(example("01_hello_ranks"))
    for name in ("10_all_axes", "12_data_parallel", "13_diloco", "16_your_own_task", "21_your_own_plan"):
        (folder / name).symlink_to(example(name))
    (folder / "mine.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n")


def without_options(command, number):
    """Makes a command of a synopsis: brackets are removed, names are replaced. Also returns the options in the
    brackets.
    """
    optional = re.findall(r"\[(--[\w-]+)", command)
    names = NAMES | {"NEW": f"new-{number}", "TO": f"exported-{number}"}
    words = re.sub(r"\s*\[[^\]]*\]", "", command).split(" ")
    return " ".join(names.get(word, word) for word in words), optional


class Runner:
    def __init__(self, folder):
        self.folder = folder
        path = f"{pathlib.Path(lockstep()).parent}:{folder}:{os.environ['PATH']}"
        self.env = environment(PATH=path, TERM="dumb")

    def start(self, command):
        return Process(["bash", "-c", command], cwd=self.folder, env=self.env)

    def trains(self, command):
        """Interrupts the training after its first step, and checks that its checkpoint exists."""
        started = self.start("exec " + command)
        first = re.compile(r"\bstep\s+\d+")
        until = time.monotonic() + 120
        while started.process.poll() is None and not any(map(first.search, started.lines)):
            expect(time.monotonic() < until, f"no step after 120 s: {command}", "".join(started.lines))
            time.sleep(0.05)
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGINT)
        code, output, _ = started.finish(120)
        expect(code in (0, 130), f"exit code {code}: {command}", output)
        expect(re.search("done:|stopped:", output), f"neither done nor stopped: {command}", output)

    def ends(self, command, code=0):
        found, output, _ = self.start(command).finish(180)
        expect(found == code, f"exit code {found}, expected {code}: {command}", output)
        return output

    def has_options(self, command, options):
        words = command.split()
        taken = words[:3] if words[1] in ("bench", "checkpoint", "plan") else words[:2]
        output = self.ends(" ".join([*taken, "--help"]))
        for option in options:
            expect(option in output, f"{' '.join(taken)} --help has no {option}", output)

    def measures(self, command):
        """Interrupts a benchmark once it has printed something, or lets it end."""
        started = self.start("exec " + command)
        until = time.monotonic() + 120
        while started.process.poll() is None and not started.lines:
            expect(time.monotonic() < until, f"silent for 120 s: {command}")
            time.sleep(0.05)
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGINT)
        code, output, _ = started.finish(60)
        expect(code in (0, 130, -signal.SIGINT), f"exit code {code}: {command}", output)

    def takes_bench_options(self, command):
        """Only parses the arguments of ./dev bench, which would measure for minutes."""
        words = shlex.split(command)[2:]
        script = "import sys, run; run.parser_of_all().parse_args(sys.argv[1:])"
        code, output, _ = run([sys.executable, "-B", "-c", script, *words], cwd=ROOT / "bench")
        expect(code == 0, f"exit code {code}: {command}", output)

    def show(self, command, shown_output, number):
        """Runs the command according to its kind. Returns a description."""
        if reason := next((why for pattern, why in ELSEWHERE if re.match(pattern, command)), ""):
            return f"not here: {reason}"
        if command.startswith("./dev bench "):
            self.takes_bench_options(command)
            return "its arguments were read"
        command, optional = without_options(command, number)
        if shown_output is None or optional:
            self.has_options(command, optional or re.findall(r"--[a-z][\w-]*", command))
        if shown_output is None:
            return "its options are there"
        if re.search(r"\blockstep(-| )train\b|^16_your_own_task", command):
            self.trains(command)
        elif small := SMALL.get(" ".join(command.split()[:2])):
            self.ends(re.sub(r" --size \S+", "", command) + small)
            return "ran with small sizes"
        elif "lockstep bench " in command:
            self.measures(command)
        else:
            output = self.ends(command, FAILS.get(command, 0))
            expect(shown_output in output, f"{command}: expected the lines\n{shown_output}\nfound:", output)
        return "ran"


def main():
    adopt_orphans()
    counts = collections.Counter()
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
                 *sorted((ROOT / "docs/reference").glob("*.md"))]
    for document in documents:
        with tempfile.TemporaryDirectory() as folder:
            prepare(pathlib.Path(folder))
            runner = Runner(pathlib.Path(folder))
            if str(document.relative_to(ROOT)) in NEED_A_RUN:
                runner.ends("lockstep train gpt --vocabulary tokens --vocabulary-size 50257 --data tokens "
                            "--out trained --steps 1 --width 32 --layers 1 --heads 2")
                runner.ends("lockstep checkpoint convert trained model")
            for number, command, shown_output in commands_of(document):
                began = time.monotonic()
                done = runner.show(command, shown_output, number)
                counts[done.split(":")[0]] += 1
                shown(f"{document.relative_to(ROOT)}:{number}: {command}: {done}", time.monotonic() - began)
    end_all()
    expect(counts["ran"] > 30, f"only {counts['ran']} command lines were found")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
