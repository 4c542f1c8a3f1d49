#!/usr/bin/env python3
"""Compiles the source that sees CUDA's headers, on a host without a GPU and without a CUDA toolkit (`./dev cuda`).

    cuda.py COMPILER LIBTORCH FOLDER

Compiles against LIBTORCH and each other version that CMake accepts. Nothing is linked or run. FOLDER keeps the headers, which
pip downloads once: 0.3 GiB of NVIDIA's packages and 0.1 GiB for each version of LibTorch, whose wheels for the CPU have the
headers of its part for CUDA, too. A version that pip does not find or may not take is skipped; if pip does not find NVIDIA's
headers, or not the registry, or without pip, the exit status is 77. Any other failure of pip is an error.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

PACKAGES = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85", "nvidia-nccl-cu13==2.32.3")
# LibTorch's headers name these types, and the source uses none of them. Their packages have 0.8 GiB.
HANDLES = {"cublas_v2.h": ("cublasHandle_t", "cublasStatus_t"), "cublasLt.h": ("cublasLtHandle_t",),
           "cusparse.h": ("cusparseHandle_t", "cusparseStatus_t"), "cusolverDn.h": ("cusolverDnHandle_t", "cusolverStatus_t"),
           "cusolver_common.h": ()}
VERSIONS = ("2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0")
# The smallest wheels of LibTorch.
SMALLEST = ("--only-binary=:all:", "--python-version=3.12", "--platform=macosx_11_0_arm64", "--platform=macosx_14_0_arm64")
ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/comm/backends/c10d/nccl.cc"
# LibTorch's build writes this one; a wheel for the CPU does not have it.
MADE_HEADER = "c10/cuda/impl/cuda_cmake_macros.h"
SKIPPED = 77
# Words of the error if there is no pip, the registry cannot be reached or does not have the package, or a constraint of this
# host's pip excludes its version: with --no-deps nothing else is in conflict.
OUT_OF_REACH = re.compile("No matching distribution|conflicting dependencies|HTTP error|HTTPS?ConnectionPool|NewConnectionError|"
                          "Max retries|timed out|ProxyError|SSLError|Connection (broken|aborted|reset|refused)|name resolution|"
                          "Name or service not known|Network is unreachable|No module named pip")


def extract_headers(wheel, folder):
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            _, found, place = name.partition("/include/")
            if found and place and not place.endswith("/"):
                header = folder / place
                header.parent.mkdir(parents=True, exist_ok=True)
                header.write_bytes(files.read(name))


def fetch_headers(folder, packages, options=()):
    """Returns why the registry does not provide the headers of the packages; empty: they are in the folder."""
    complete = folder / ".complete"
    if complete.exists() and complete.read_text() == "\n".join(packages):
        return ""
    print(f"cuda: downloading headers: {', '.join(packages)}", flush=True)
    with tempfile.TemporaryDirectory() as wheels:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                               *options, "--dest", wheels, *packages], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            # Warnings tell of tries that failed, also before a try that succeeded.
            lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
            problem = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no reason given")
            if OUT_OF_REACH.search("\n".join(lines)):
                return problem
            sys.exit(f"cuda: pip download failed with {done.returncode}: {problem}")
        for wheel in pathlib.Path(wheels).glob("*.whl"):
            extract_headers(wheel, folder)
    complete.write_text("\n".join(packages))
    return ""


def make_headers(folder):
    made = folder / MADE_HEADER
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
    for header, types in HANDLES.items():
        (folder / header).write_text("#pragma once\n" + "".join(f"typedef struct opaque_{name}* {name};\n" for name in types))


def compile_against(compiler, torch, folder):
    systems = (torch, torch / "torch/csrc/api/include", folder, folder / "cccl")
    return subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-DUSE_C10D_NCCL",
                           f"-I{ROOT}/include", f"-I{ROOT}/src", *(f"-isystem{system}" for system in systems), SOURCE],
                          check=False).returncode == 0


def version_of(torch):
    text = (torch / "torch/headeronly/version.h").read_text()
    return ".".join(re.search(rf"TORCH_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def main(compiler, libtorch, folder):
    folder, torch = pathlib.Path(folder), pathlib.Path(libtorch) / "include"
    nvidia = folder / "nvidia"
    problem = fetch_headers(nvidia, PACKAGES)
    if problem:
        print(f"cuda: skipped, without NVIDIA's headers: {problem}")
        return SKIPPED
    make_headers(nvidia)
    all_headers = {version_of(torch): torch}
    for version in VERSIONS:
        if version in all_headers:
            continue
        problem = fetch_headers(folder / version, (f"torch=={version}",), SMALLEST)
        if problem:
            print(f"cuda: LibTorch {version} skipped: {problem}")
        else:
            all_headers[version] = folder / version
    status = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        works = {version: threads.submit(compile_against, compiler, headers, nvidia) for version, headers in all_headers.items()}
        for version, work in works.items():
            print(f"cuda: {SOURCE.relative_to(ROOT)} {'compiles' if work.result() else 'DOES NOT COMPILE'} against LibTorch {version}")
            status = status if work.result() else 1
    return status


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
