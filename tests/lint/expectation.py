"""Helper for the tests of the checks: runs a check on a folder of a few files and compares exit code and output."""
import pathlib
import subprocess
import sys
import tempfile


def expectation(name, *options):
    """Returns expect(files, status, text) for tools/lint/NAME with these options."""
    check = pathlib.Path(__file__).resolve().parents[2] / "tools/lint" / name

    def expect(files, status, text):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            done = subprocess.run([sys.executable, check, *options, folder], capture_output=True, text=True)
        right = done.returncode == status and text in done.stdout
        assert right, f"expected {status} and '{text}', found {done.returncode}: {done.stdout}{done.stderr}"

    return expect
