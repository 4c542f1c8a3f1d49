"""The layer check finds includes in the wrong direction, between siblings or backends, and misplaced LibTorch."""
import pathlib
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools/lint/layers.py"


def run(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
        return done.returncode, done.stdout


def expect(files, status, text):
    found, output = run(files)
    right = found == status and text in output
    assert right, f"expected {status} and '{text}', found {found}: {output}"


FOLDERS = ("base", "store", "comm", "data", "models", "parallel/data")
HEADERS = {f"include/lockstep/{folder}/x.h": "" for folder in FOLDERS}
expect(HEADERS | {"src/comm/x.cc": "#include <lockstep/base/x.h>\n"}, 0, "every include goes down")
expect(HEADERS | {"src/base/x.cc": "#include <lockstep/comm/x.h>\n"}, 1, "src/base/x.cc:1")
expect(HEADERS | {"src/data/x.cc": "\n#include <lockstep/models/x.h>\n"}, 1, "src/data/x.cc:2")
expect(HEADERS | {"src/store/x.cc": "#include <ATen/core/Tensor.h>\n"}, 1, "without LibTorch")
shm = "src/comm/backends/shm/a.cc"
expect(HEADERS | {shm: "#include <lockstep/comm/x.h>\n"}, 1, "a.cc is without LibTorch, but includes")
expect(HEADERS | {shm: "#include <torch/torch.h>\n"}, 1, "comm/backends/shm is a layer without LibTorch")
beside = {"src/comm/backends/mpi/a.h": "", shm: '#include "comm/backends/mpi/a.h"\n'}
expect(HEADERS | beside, 1, "comm/backends/shm includes comm/backends/mpi/a.h")
below = {"src/comm/init/a.h": "", "src/comm/api/a.h": '#include "comm/init/a.h"\n'}
expect(HEADERS | below, 1, "comm/api includes comm/init/a.h")
strategy = {"src/parallel/tensor/x.cc": "#include <lockstep/parallel/data/x.h>\n"}
expect(HEADERS | strategy, 1, "parallel/tensor includes")
print("layers: finds all nine")
