"""Each statement of torchscript.cc is refused by itself, in a sentence that says how a TorchScript module is trained.

    torchscript_test.py BUILD
"""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE / "torchscript.cc"
SENTENCE = "wrap it: register its parameters"
sys.path.insert(0, str(HERE.parents[1] / "tools/lint"))

import alone  # noqa: E402
import units  # noqa: E402


def main(build):
    build = pathlib.Path(build).resolve()
    # Without a statement the source compiles. This also makes the precompiled header.
    subprocess.run(["cmake", "--build", build, "--target", "torchscript_refused"], check=True)
    commands = {path.resolve(): command for path, command in units.commands_of(build).items()}
    command = alone.without_output(commands[SOURCE])
    statements = re.findall(r"STATEMENT == (\d+)\n +(.*)\n", SOURCE.read_text())
    assert len(statements) == 6, statements
    for number, statement in statements:
        done = subprocess.run([*command, f"-DREFUSED_STATEMENT={number}"], cwd=build, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0 or SENTENCE not in done.stdout:
            sys.exit(f"{statement}\nended with {done.returncode}, expected '{SENTENCE}' and an error:\n{done.stdout}")
        print(f"refused: {statement}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
