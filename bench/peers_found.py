"""The programs of others that a benchmark compares with: a Python with torch, an MPI."""

import os
import pathlib
import shutil
import subprocess
import sys

from contenders import Failed, Ranks

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PEERS = SOURCE / "bench" / "peers"


def find_python(given):
    """Returns `given`, else LOCKSTEP_PYTHON (empty: none), else the source tree's Python if it has torch. Only
    running it shows whether a named one has.
    """
    python = given or os.environ.get("LOCKSTEP_PYTHON")
    if python is None and any((SOURCE / ".venv/lib").glob("*/site-packages/torch/version.py")):
        python = SOURCE / ".venv/bin/python"
    if not python or not pathlib.Path(python).exists():
        place = f" at {python}" if python else " with torch"
        raise Failed(f"no Python{place}: name one that has torch by --python or LOCKSTEP_PYTHON")
    return str(python)


def peer_command(python, script, *words):
    return [python, "-W", "ignore", PEERS / script, *words]


class Mpi:
    """An MPI that is installed on this host: its compiler and its launcher."""

    def __init__(self, compiler, launcher):
        self.compiler, self.launcher = compiler, launcher
        names = launcher + os.path.realpath(launcher)
        # MPICH's launcher is Hydra, under any name; Open MPI comes with ompi_info.
        self.is_openmpi = "mpich" not in names and "hydra" not in names and shutil.which("ompi_info") is not None

    @classmethod
    def find(cls, name):
        """Returns the MPI `name`: mpi (Open MPI, else any mpicc), openmpi or mpich; None if it is not on the PATH."""
        pairs = [("mpicc.mpich", "mpirun.mpich")] if name == "mpich" else [("mpicc.openmpi", "mpirun.openmpi")]
        if name == "mpi":
            pairs.append(("mpicc", "mpirun"))
        for pair in pairs:
            compiler, launcher = map(shutil.which, pair)
            if compiler and launcher:
                return cls(compiler, launcher)
        return None

    def compile(self, source, program):
        if subprocess.run([self.compiler, "-O2", "-o", program, source], stdout=sys.stderr, check=False).returncode:
            raise Failed(f"{self.compiler} could not compile {source}")

    def start(self, name, command, ranks, folder, variables=None):
        """Starts the launcher with ranks of `command`. The last word of `command` is the folder of their fifos, below
        `folder`.
        """
        pipes = pathlib.Path(folder) / f"{name}-{ranks}"
        pipes.mkdir()
        words = ["--oversubscribe"] if self.is_openmpi else []
        if self.is_openmpi and os.geteuid() == 0:
            words.append("--allow-run-as-root")
        return Ranks.start_by_launcher(
            name, [self.launcher, *words, "-np", ranks, *command, pipes], ranks, pipes, variables
        )
