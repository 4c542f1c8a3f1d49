#!/usr/bin/env python3
"""Compiles the source that sees CUDA's headers, on a host without a GPU and without a CUDA toolkit (`./dev cuda`).

    cuda.py COMPILER LIBTORCH FOLDER

FOLDER gets the headers: pip downloads NVIDIA's packages from PyPI once, 1.1 GiB, of which 24 MiB of headers are kept.
LIBTORCH may be one for the CPU: its folder has the headers of LibTorch's part for CUDA, too. Nothing is linked or run.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGES = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85", "nvidia-cublas==13.10.0.20",
            "nvidia-cusparse==12.9.4.2", "nvidia-cusolver==12.4.1.2", "nvidia-nccl-cu13==2.32.3")
ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/comm/engines/c10d/nccl.cc"
# LibTorch's build writes this one; a wheel for the CPU does not have it.
MADE_HEADER = "c10/cuda/impl/cuda_cmake_macros.h"


def extract_headers(wheel, folder):
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            _, found, place = name.partition("/include/")
            if found and place and not place.endswith("/"):
                header = folder / place
                header.parent.mkdir(parents=True, exist_ok=True)
                header.write_bytes(files.read(name))


def fetch_headers(folder):
    complete = folder / ".complete"
    if complete.exists() and complete.read_text() == "\n".join(PACKAGES):
        return
    print(f"cuda: downloading headers: {', '.join(PACKAGES)}", flush=True)
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.check_call([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                               "--dest", wheels, *PACKAGES])
        for wheel in pathlib.Path(wheels).glob("*.whl"):
            extract_headers(wheel, folder)
    made = folder / MADE_HEADER
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
    complete.write_text("\n".join(PACKAGES))


def main(compiler, libtorch, folder):
    folder, torch = pathlib.Path(folder), pathlib.Path(libtorch) / "include"
    fetch_headers(folder)
    systems = (torch, torch / "torch/csrc/api/include", folder, folder / "cccl")
    subprocess.check_call([compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-DUSE_C10D_NCCL",
                           f"-I{ROOT}/include", f"-I{ROOT}/src", *(f"-isystem{system}" for system in systems), SOURCE])
    print(f"cuda: {SOURCE.relative_to(ROOT)} compiles against {torch}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
