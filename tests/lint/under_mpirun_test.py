"""tests/integration/under_mpirun.py skips if mpirun starts worlds of one rank, and runs the program otherwise."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "integration/under_mpirun.py"
# A fake `mpirun -n RANKS PROGRAM WORDS...` that runs the program RANKS times; `world` prints the
# size of its world.
MPIRUN = '#!/bin/sh\nranks=$2; shift 2\nfor rank in $(seq $ranks); do RANK=$rank RANKS=$ranks "$@"; done\n'
WORLDS = {"right": '#!/bin/sh\n[ $RANK != 1 ] || echo world of $RANKS\n', "of one": "#!/bin/sh\necho world of 1\n",
          "broken": "#!/bin/sh\nexit 3\n"}


def run(world, *words):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("mpirun", MPIRUN), ("world", WORLDS[world])):
            (path := pathlib.Path(folder, name)).write_text(text)
            path.chmod(0o755)
        done = subprocess.run([sys.executable, "-B", SCRIPT, f"{folder}/mpirun", f"{folder}/world", *words],
                              capture_output=True, text=True)
        return done.returncode, done.stdout


def expect(found, code, text):
    assert found[0] == code and text in found[1], f"expected {code} and '{text}', found {found}"


expect(run("right", "-n", "3", "/bin/echo", "a rank"), 0, "a rank\n" * 3)
expect(run("right", "/bin/echo", "by itself"), 0, "by itself\n")
expect(run("of one", "-n", "3", "/bin/echo", "a rank"), 77, "starts two worlds of one rank")
expect(run("broken", "-n", "3", "/bin/echo", "a rank"), 1, "exit code")
print("under_mpirun: tells worlds of one rank from others")
