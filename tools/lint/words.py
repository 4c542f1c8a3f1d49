#!/usr/bin/env python3
"""Checks the wording: no private noun instead of a term of docs/reference/glossary.md, and style rules that a
machine can check.

Reads comments, identifiers and texts of include/, src/ and examples/, the documents except decisions, the manual, and
the programs of bench/. A line that needs such a word says so at its end: "words: allowed" in a comment.

Then reads the sentences of comments, of tests and tools too, for habits that make a reader start again. At most one
sentence in a hundred may have one of them.
"""
import fnmatch
import pathlib
import re
import sys

TREES = ("include", "src", "examples", "docs", "bench", "README.md", "CONTRIBUTING.md")
SUFFIXES = (".h", ".cc", ".c", ".py", ".md", ".1", ".bash", ".txt")
LEFT_OUT = ("docs/decisions/*",)
ALLOWED = "words: allowed"

CODE = ("include/*", "src/*", "examples/*", "docs/*", "README.md", "CONTRIBUTING.md")
# (pattern, the word to write, where to look, exceptions)
NOUNS = [
    (r"(?i)roster", "nodes of the run", CODE, ()),
    (r"(?i)(?<![a-z])verdict", "result of the run (RunResult)", CODE, ()),
    (r"(?i)meeting[_ ]?p(oint|lace)", "rendezvous", CODE, ()),
    (r"(?i)last[_ ]words?\b", "value for the end of a connection (set_on_disconnect)", CODE, ()),
    (r"(?i)(?<![a-z])octets?(?![a-z])", "bytes", CODE, ()),
    (r"(?<![A-Za-z])[Dd]ice(?![a-z])", "stochastic rounding", CODE, ()),
    (r"(?i)(?<![a-z])treatments?(?![a-z])", "gradient transform", ("include/*", "src/optim/*", "docs/optimizers.md"), ()),
    (r"(?i)kept[_ ]?(tensor|memory|buffer|storage)", "state, or a persistent buffer", CODE, ()),
    (r"(?i)(?<![a-z])(inquest|ledger|errand|companion|post[_ ]office|roll[_ ]call)s?(?![a-z])",
     "diagnosis, history, task, peer, progress thread, handshake", CODE, ()),
    (r"(?i)(?<![a-z])(forsake|farewell|mourn|godparent|spouse|sibling|witness)", "the field's word", ("include/*", "docs/*"),
     ("docs/architecture.md",)),
    (r"(?<![A-Za-z])patience(?![a-z])", "timeout", CODE,
     ("*/train/*", "src/apps/lockstep.1", "src/comm/backends/shm/*", "docs/training.md", "docs/reference/glossary.md")),
    (r"(?<![A-Za-z])Patience(?![a-z])", "timeout, or backoff", CODE, ("*/train/*",)),
    (r"(?i)deferred[_ ]?gradients?(?![a-z])", "lazy gradient: deferred is the construction of a model", CODE, ()),
    (r"(?i)group[_ ]story", "history of a group", CODE, ()),
    (r"(?i)\bquiet[_ ]number", "high number (of a descriptor)", CODE, ()),
    (r"(?<![a-z-])[Mm]achines?(?![a-z_])", "host", ("include/*",), ()),
    (r"[0-9}] ?[kKMGT]B\b(?!/s)", "KiB, MiB or GiB, as format_bytes() does", CODE,
     ("src/base/text.*", "src/sys/process_info.cc", "src/sys/topology.cc")),
]
ENGLISH = [
    (r"(?i)\bwho(m|ever)?\b(?! is who)", "what acts by its name: the rank, the thread that ..., a program that ...",
     ("include/*", "docs/*", "README.md", "src/apps/*"), ()),
    (r"(?i)\bin vain\b", "timed out", CODE, ()),
    (r"(?i)(?<!is )\b(not a number|no number)\b", "NaN", ("include/*", "src/*"), ("*/report/flight_file.cc", "*/loader_plan.h")),
    (r"(?i)\b(longer|larger|more) than nothing\b", "positive", CODE, ()),
    (r"(?i)\binfinite or NaN\b", "inf or NaN", ("include/*", "docs/*"), ()),
    (r"(?i)\b(obituar|funeral|widow|judge|jury)[a-z]*", "a word of the field", CODE, ()),
    (r"\b(?<![_:.])(?i:initializ|synchroniz|recogniz|normaliz|serializ|quantiz|finaliz)(?:es?|ed|ing|ations?)\b(?![(<_:>])",
     "-ise, as the rest of the project (names of LibTorch keep theirs)", ("include/*", "docs/*", "README.md"), ()),
    (r"(?i)\b(behavior|neighbor|favorite|labeled|canceled)", "the British spelling, as the rest of the project", CODE, ()),
]
# Code asks what a device or a group can do; only a few files may name a device.
DEVICES = [
    (r"\bis_(cuda|xpu|hip)\(\)|\bk(CUDA|XPU|HIP)\b|\bhas(CUDA|XPU|HIP)\b", "accelerator() or pins_host_memory() of comm/backend/accelerator.h",
     ("include/*", "src/*"), ("src/comm/backend/accelerator.cc", "src/comm/init/*.cc", "src/comm/backends/c10d/nccl.cc",
                              "src/parallel/threads/data_parallel.cc")),
    (r"[!=]= \"nccl\"", "has_streams() of lockstep/comm/device.h", ("include/*", "src/*"), ("src/comm/init/backends.cc",)),
]
RULES = [(re.compile(found), wanted, where, but) for found, wanted, where, but in NOUNS + ENGLISH + DEVICES]

# Habits of sentences in comments.
COMMENTED = ("src", "include", "tests", "bench", "tools", "examples", "recipes")
HABITS = [(re.compile(found), name) for found, name in (
    (r"^(Of|What|Those|As of|But of|And of|With it|Whoever|Whom|Whose|Whether|Which|Than|None of)\b(?!.*\?$)",
     "begins with a fragment"),
    (r"\b(who|whom|whoever|nobody|everybody|anybody|somebody|everyone|no one)\b", "a person for a thing"),
    (r"\b(one|two|three|[0-9.]+( [a-z]+)?) an? "
     r"(rank|host|process|thread|step|group|call|node|unit|bucket|parameter|stage)\b", "'one a X' for 'one per X'"),
    (r"\b(of|for|in|with|by|from|at|on|and|than|is|are|to) what "
     r"(it|is|was|are|were|has|had|the|a|each|no|one|of|they|comes|came|goes)\b", "'what' as a noun"),
    (r"\b[Oo]f those (that|which|who)\b", "'of those that'"),
    (r"\bbut for\b", "'but for'"),
    (r"\b(that|which) (is|are) none\b|\bthere (is|are) none\b", "'none' as a value"),
)]
MOST = 0.01  # of all sentences

# The alias of the namespace: headers write lockstep::, and a page or program that writes ls:: must declare the alias.
ALIAS, USE = "namespace ls = lockstep;", re.compile(r"(?<![\w:])ls::")


def problems_of(path, root):
    name = path.relative_to(root).as_posix()
    text = path.read_text(errors="replace")
    rules = [rule for rule in RULES if any(fnmatch.fnmatch(name, where) for where in rule[2])
             and not any(fnmatch.fnmatch(name, but) for but in rule[3])]
    for number, line in enumerate(text.split("\n"), 1):
        if ALLOWED in line or line.startswith("#include"):
            continue
        for found, wanted, _, _ in rules:
            if match := found.search(line):
                yield f"{name}:{number}: '{match[0]}': write {wanted}"
        if name.startswith("include/") and USE.search(line):
            yield f"{name}:{number}: 'ls::' in a header: write lockstep::"
    if not name.startswith("include/") and USE.search(text) and ALIAS not in text:
        yield f"{name}: uses ls:: and does not show '{ALIAS}'"


def sentences_of(path):
    """Returns (line, sentence) for each sentence of at least five words in a comment of `path`."""
    mark = "#" if path.suffix == ".py" else "//"
    found, block, start = [], [], 0
    for number, line in enumerate([*path.read_text(errors="replace").split("\n"), ""], 1):
        text = line.strip()
        if text.startswith(mark) and not text.startswith("#!"):
            start = start or number
            block.append(text.lstrip("/# ").strip())
            continue
        parts = re.split(r"(?<=[.:;])\s+(?=[A-Z])", " ".join(block))
        found += [(start, part) for part in parts if len(part.split()) >= 5]
        block, start = [], 0
    return found


def habits_in(root):
    """Returns the number of sentences in comments, and a line for each that has one of HABITS."""
    count, problems = 0, []
    paths = [path for tree in COMMENTED for path in sorted((root / tree).rglob("*"))]
    for path in paths:
        for line, sentence in sentences_of(path) if path.suffix in (".h", ".cc", ".py") else ():
            count += 1
            if habit := next((name for found, name in HABITS if found.search(sentence)), None):
                problems.append(f"{path.relative_to(root).as_posix()}:{line}: {habit}: {sentence[:160]}")
    return count, problems


def main(root):
    files = [path for tree in TREES for path in
             ([root / tree] if (root / tree).is_file() else sorted((root / tree).rglob("*"))) if path.suffix in SUFFIXES]
    files = [path for path in files if not any(fnmatch.fnmatch(path.relative_to(root).as_posix(), left) for left in LEFT_OUT)]
    problems = [problem for path in files for problem in problems_of(path, root)]
    count, habits = habits_in(root)
    if len(habits) > MOST * count:
        problems += [*habits, f"{len(habits)} of {count} sentences in comments have such a habit; at most {MOST:.0%} may"]
    print("\n".join(problems) if problems else
          f"words: {len(files)} files, {len(RULES)} rules; {len(habits)} of {count} sentences in comments have a habit to avoid")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
