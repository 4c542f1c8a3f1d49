"""The check of mutants finds a missing source, a text that does not occur once, and a duplicate name.
tools/mutants.py restores the sources that it has changed, and no others.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from expectation import expectation

expect = expectation("mutants.py")
SOURCE = {"src/base/a.cc": "int a = 1;\nint b = 2;\n"}


def listed(*mutants):
    return SOURCE | {"tools/mutants.py": f"MUTANTS = {list(mutants)}\n"}


GOOD = ("a is two", "base/a.cc", "a = 1", "a = MUTANT ? 2 : 1", "base", "*")
expect(listed(GOOD), 0, "each of 1 mistakes has its place")
expect(listed((GOOD[0], "base/gone.cc", *GOOD[2:])), 1, "'a is two': src/base/gone.cc is not there")
expect(listed((*GOOD[:2], "c = 1", *GOOD[3:])), 1, "expected once in src/base/a.cc, found 0 times: 'c = 1'")
expect(listed((*GOOD[:2], "int ", *GOOD[3:])), 1, "found 2 times: 'int '")
expect(listed(GOOD, (*GOOD[:2], "b = 2", *GOOD[3:])), 1, "2 mistakes are called 'a is two'")
expect(listed((*GOOD[:3], "a = 2", *GOOD[4:])), 1, "expected MUTANT")

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/mutants.py"
CHANGED = '#include "base/mutant.h"\n'


def make_tree(folder, files):
    """Makes a tree with tools/mutants.py and these files, and returns the tool."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tools").mkdir()
    return shutil.copy(TOOL, folder / "tools")


# After a kill, a source that is no longer changed, because git has restored it and the user has gone on, stays.
with tempfile.TemporaryDirectory() as name:
    tree = pathlib.Path(name)
    tool = make_tree(tree, {"build/mutants/base/a.cc": "int a;\n", "src/base/a.cc": CHANGED + "int wrong;\n",
                            "build/mutants/base/b.cc": "int b;\n", "src/base/b.cc": "int b;\nint later;\n",
                            "build/mutants/base/gone.cc": "int gone;\n", "src/base/mutant.h": ""})
    subprocess.run([sys.executable, "-B", tool, "--restore"], check=True)
    assert (tree / "src/base/a.cc").read_text() == "int a;\n"
    assert (tree / "src/base/b.cc").read_text() == "int b;\nint later;\n"
    left = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    assert left == ["src/base/a.cc", "src/base/b.cc", "tools/mutants.py"], left

# A closed terminal ends a run like an interrupt, except under nohup. This ninja runs while the sources are changed.
RUN = """import os, signal, sys
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
sys.path.insert(0, "tools")
import mutants
mutants.MUTANTS = [("a is two", "base/a.cc", "a = 1", "a = MUTANT ? 2 : 1", "base", "*")]
sys.exit(mutants.main("build", []))
"""
for how, code in (("SIG_DFL", 1), ("SIG_IGN", 3)):
    with tempfile.TemporaryDirectory() as name:
        tree = pathlib.Path(name)
        make_tree(tree, {**SOURCE, "ninja": "#!/bin/sh\ncp src/base/a.cc seen\nkill -HUP $PPID; sleep 1; exit 3\n"})
        (tree / "ninja").chmod(0o755)
        done = subprocess.run([sys.executable, "-B", "-c", RUN, how], cwd=tree, env={"PATH": f"{tree}:/usr/bin:/bin"},
                              stderr=subprocess.PIPE, text=True, check=False)
        assert ("interrupted" in done.stderr) == (code == 1), done.stderr
        assert ("exit status 3" in done.stderr) == (code == 3), done.stderr
        assert (tree / "seen").read_text().startswith(CHANGED), (tree / "seen").read_text()
        assert (tree / "src/base/a.cc").read_text() == SOURCE["src/base/a.cc"]
        assert not (tree / "build/mutants").exists() and not (tree / "src/base/mutant.h").exists()
print("mutants: finds all five, and restores what it has changed")
