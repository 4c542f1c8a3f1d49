"""The modules of cmake/, in projects without a language: which LibTorch is found, and what is installed where."""
import contextlib
import os
import pathlib
import subprocess
import tempfile

from fake_libtorch import make_libtorch

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIND = """cmake_minimum_required(VERSION 3.25)
project(finds LANGUAGES NONE)
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_SOURCE_DIR}/threads")
if(MODULES)
  list(PREPEND CMAKE_MODULE_PATH "${MODULES}")
  find_package(LibTorch 2.11...<2.16 REQUIRED)
else()
  find_package(lockstep REQUIRED)
endif()
message(STATUS "finds ${LibTorch_ROOT_DIR} ${LibTorch_VERSION} ${LibTorch_c10_LIBRARY}")
get_directory_property(files CMAKE_CONFIGURE_DEPENDS)
message(STATUS "depends on ${files}")
"""
# Lockstep's own install rules, for a layer and two libraries that have no sources.
INSTALL = """cmake_minimum_required(VERSION 3.25)
project(Lockstep VERSION 0.1.0 LANGUAGES NONE DESCRIPTION "a test")
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_SOURCE_DIR}/cmake" "${CMAKE_SOURCE_DIR}/threads")
include(GNUInstallDirs)
find_package(LibTorch 2.11...<2.16 REQUIRED)
foreach(target IN ITEMS base static shared agent)
  add_library(lockstep_${target} INTERFACE)
endforeach()
set_target_properties(lockstep_shared PROPERTIES EXPORT_NAME shared)
set_target_properties(lockstep_static PROPERTIES EXPORT_NAME static)
set(LOCKSTEP_LAYERS lockstep_base)
set(LOCKSTEP_LIBTORCH ON)
set(LOCKSTEP_LIBTORCH_RANGE 2.13)
include(LockstepInstall)
"""
LAYER = """cmake_minimum_required(VERSION 3.25)
project(layer LANGUAGES NONE)
set(CMAKE_INSTALL_LIBDIR lib/x86_64-linux-gnu)
include(GNUInstallDirs)
include(cmake/LockstepLayer.cmake)
lockstep_sources(found "${CMAKE_SOURCE_DIR}/src" "*.cc" OF a EXCEPT a/b a/c.cc)
message(STATUS "sources ${found}")
message(STATUS "programs find libraries in ${LOCKSTEP_LIBRARIES_FROM_PROGRAMS}")
"""


def make_python(folder, libtorch):
    """Makes a Python of a virtual environment whose torch is in `libtorch`, none if this is empty."""
    python = folder / "bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{libtorch}'\n")
    python.chmod(0o755)
    return python


def make_project(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CMakeLists.txt").write_text(text)
    (folder / "threads").mkdir()
    (folder / "threads/FindThreads.cmake").write_text("set(Threads_FOUND ON)\n")   # the real one needs a language
    return folder


def run(*words, status=0, **variables):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("LibTorch_", "Torch_", "CMAKE_", "VIRTUAL_ENV", "PKG_CONFIG"))}
    done = subprocess.run([str(word) for word in words], env=kept | variables, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert (done.returncode == 0) == (status == 0), f"{words}: {done.returncode}\n{done.stdout}"
    return done.stdout


def configure(source, build, *words, **variables):
    return run("cmake", "-G", "Ninja", "-S", source, "-B", build, *words, **variables)


def expect(text, *parts):
    for part in parts:
        assert str(part) in text, f"no '{part}' in {text}"


def finds_what_was_named(folder):
    source = make_project(folder / "project", FIND)
    a, b, c = (make_libtorch(folder / name) for name in ("a", "b", "c/torch"))
    python = make_python(folder / "env", b)
    build, modules = folder / "build", f"-DMODULES={ROOT / 'cmake'}"
    # An upgrade in place configures again, and so do other words: what the last configuration found is forgotten.
    expect(configure(source, build, modules, f"-DLibTorch_ROOT={a}"), f"finds {a} 2.13.0 {a}/lib/libc10.so",
           f"depends on {a}/include/torch/headeronly/version.h")
    expect(configure(source, build), f"finds {a} ")
    expect(configure(source, build, f"-DLibTorch_ROOT={b}"), f"finds {b} 2.13.0 {b}/lib/libc10.so")
    expect(configure(source, build, "-ULibTorch_ROOT", f"-DCMAKE_PREFIX_PATH=/nowhere;{folder}/c"), f"finds {c} ")
    expect(configure(source, build, f"-DCMAKE_PREFIX_PATH={a}/share/cmake"), f"finds {a} ")
    # LibTorch_PYTHON wins over a LibTorch_ROOT that ./dev has left, and must have torch.
    expect(configure(source, build, f"-DLibTorch_ROOT={a}", f"-DLibTorch_PYTHON={python}"), f"finds {b} ")
    none = make_python(folder / "none", "")
    expect(configure(source, build, f"-DLibTorch_PYTHON={none}", status=1), "name a LibTorch folder by -D")
    # The environment counts at first, and does not change what a later configuration of a build keeps.
    expect(configure(source, folder / "other", modules, CMAKE_PREFIX_PATH=f"/nowhere:{folder}/c"), f"finds {c} ")
    expect(configure(source, folder / "other", LibTorch_ROOT=str(a)), f"finds {c} ")
    expect(configure(source, folder / "active", modules, VIRTUAL_ENV=str(folder / "env")), f"finds {b} ")


def installs_for_others(folder):
    torch, other = make_libtorch(folder / "my torch"), make_libtorch(folder / "other")
    source = make_project(folder / "lockstep", INSTALL)
    (source / "cmake").symlink_to(ROOT / "cmake")
    (source / "include").mkdir()
    for libraries in ("lib", "lib/x86_64-linux-gnu", str(folder / "apart/lib64")):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            build, prefix = pathlib.Path(name, "build"), pathlib.Path(name, "prefix")
            configure(source, build, f"-DLibTorch_ROOT={torch}", f"-DCMAKE_INSTALL_PREFIX={prefix}",
                      f"-DCMAKE_INSTALL_LIBDIR={libraries}")
            run("cmake", "--install", build)
            config = {"PKG_CONFIG_PATH": str(prefix / libraries / "pkgconfig")}
            variable = {name: os.path.realpath(run("pkg-config", f"--variable={name}", "lockstep", **config).strip())
                        for name in ("prefix", "libdir", "includedir")}
            assert variable == {"prefix": f"{prefix}", "libdir": f"{prefix / libraries}",
                                "includedir": f"{prefix}/include"}, variable
            expect(run("pkg-config", "--libs", "lockstep", **config), "-L" + str(torch).replace(" ", "\\ ") + "/lib ")
            # A LibTorch that is named comes before the one that Lockstep was built with, other Pythons after it.
            uses = make_project(pathlib.Path(name, "uses"), FIND)
            found = f"-Dlockstep_DIR={prefix / libraries}/cmake/lockstep"
            active = {"VIRTUAL_ENV": str(make_python(pathlib.Path(name, "env"), other).parents[1])}
            for number, (said, words, variables) in enumerate((
                    (torch, [], {}), (torch, [], active), (other, [f"-DCMAKE_PREFIX_PATH={other}"], {}),
                    (other, [], {"CMAKE_PREFIX_PATH": str(other)}), (other, [], {"LibTorch_ROOT": str(other)}),
                    (other, [], {"Torch_DIR": f"{other}/share/cmake/Torch"}),
                    (other, [f"-DLibTorch_PYTHON={active['VIRTUAL_ENV']}/bin/python"], {}))):
                expect(configure(uses, f"{name}/{number}", found, *words, **variables), f"finds {said} ")


def leaves_out_sources_in_any_folder(folder):
    for name in ("c++", "a(b) c"):
        source = make_project(folder / name, LAYER)
        (source / "cmake").symlink_to(ROOT / "cmake")
        for path in ("a/d.cc", "a/b/e.cc", "a/c.cc", "a/bc/f.cc"):
            (source / "src" / path).parent.mkdir(parents=True, exist_ok=True)
            (source / "src" / path).write_text("")
        said = configure(source, folder / f"build {name}")
        expect(said, f"sources {source}/src/a/bc/f.cc;{source}/src/a/d.cc\n",
               "programs find libraries in ../lib/x86_64-linux-gnu\n")


with contextlib.ExitStack() as stack:
    for check in (finds_what_was_named, installs_for_others, leaves_out_sources_in_any_folder):
        check(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-cmake-"))).resolve())
print("cmake: LibTorch, installed files and sources are where they were named")
