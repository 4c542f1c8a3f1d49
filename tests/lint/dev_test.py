"""./dev: its shell functions, in folders of their own and with programs that only record how they were called."""
import contextlib
import http.client
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from fake_libtorch import make_libtorch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ("setup.sh", "build.sh", "check.sh", "mutants.py")
SOURCED = "set -euo pipefail; source tools/setup.sh; source tools/build.sh; source tools/check.sh\n"


def make_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make_checkout(folder):
    """Makes a folder with ./dev and its scripts, and with bin/ before the other folders of PATH."""
    (folder / "tools").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / ".cache").mkdir()
    for name in ("dev", "CMakePresets.json", *(f"tools/{tool}" for tool in TOOLS)):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(folder, *words, **variables):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("LibTorch_", "Torch_DIR", "CMAKE_", "VIRTUAL_ENV", "GIT_", "LOCKSTEP_", "TSAN"))}
    path = f"{folder}/bin:{os.environ['PATH']}"
    own = {"PATH": path, "GIT_CEILING_DIRECTORIES": str(folder.parent), "LC_ALL": "C.UTF-8"}
    return subprocess.run(words, cwd=folder, env=kept | own | variables, capture_output=True, text=True, check=False)


def shell(folder, script, status=0, **variables):
    """Runs a script after the files that ./dev sources, and returns what it printed."""
    done = run(folder, "bash", "-c", SOURCED + script, **variables)
    assert done.returncode == status, f"{script}\nended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def expect(found, wanted):
    assert found == wanted, f"expected {wanted!r}, found {found!r}"


def make_torch(packages, is_complete=True):
    """Makes an installed package torch; what pip writes last is missing if it is not complete."""
    make_libtorch(packages / "torch")
    (packages / "torch/__init__.py").write_text("")
    information = packages / "torch-2.13.0.dist-info"
    information.mkdir(parents=True)
    for name in ("METADATA", "RECORD", *(["INSTALLER"] if is_complete else [])):
        (information / name).write_text("Name: torch\nVersion: 2.13.0\n")


def make_python(path, packages):
    """Makes a Python that finds these packages and no torch of this host."""
    return make_program(path, f"unset PYTHONHOME\nPYTHONPATH='{packages}' exec '{sys.executable}' -S \"$@\"")


def a_build_folder_belongs_to_its_checkout_and_libtorch(folder):
    here = make_checkout(folder / "here")
    make_program(here / "bin/cmake", 'echo configure >>calls; touch "build/$2/build.ninja"')
    (here / ".cache/libtorch").write_text("/torch/a\n")
    configure = "compiler=c++; configure_preset release; cat calls"
    expect(shell(here, configure), "configure\n")
    (here / "build/release/object").write_text("")
    expect(shell(here, configure), "configure\n")
    assert (here / "build/release/object").exists()
    there = folder / "there"
    shutil.copytree(here, there)
    expect(shell(there, configure), "configure\n" * 2)    # a copy, with the build folder of the original
    assert not (there / "build/release/object").exists()
    (here / ".cache/libtorch").write_text("/torch/b\n")
    expect(shell(here, configure), "configure\n" * 2)
    assert not (here / "build/release/object").exists()


def a_copy_is_set_up_again(folder):
    here = make_checkout(folder / "here")
    ready = 'install_packages() { :; }\nensure_libtorch() { echo "set up"; echo / >.cache/libtorch; }\nensure_ready'
    expect([shell(here, ready), shell(here, ready)], ["set up\n", ""])
    shutil.copytree(here, folder / "there")
    expect(shell(folder / "there", ready), "set up\n")


def an_unsuitable_libtorch_is_left_out(folder):
    here, prefix = make_checkout(folder / "here"), folder / "two words"
    packages = folder / "packages"
    make_python(here / "bin/python3", packages)
    old, empty = make_libtorch(folder / "old/torch", "2.10.0"), make_libtorch(folder / "empty")
    (empty / "lib/libtorch_cpu.so").unlink()
    good = make_libtorch(prefix / "libtorch")
    offered = "offered_libtorch || echo none"
    left_out = "dev: LibTorch in {} left out: expected version 2.11 to 2.15 and lib/libtorch_cpu.so\n".format
    expect(shell(here, offered, CMAKE_PREFIX_PATH=f"*:{folder}/old:{empty}::{prefix}"),
           f"{good}\n{left_out(old)}{left_out(empty)}")
    expect(shell(here, offered, CMAKE_PREFIX_PATH=f"{good}/share/cmake"), f"{good}\n")
    expect(shell(here, offered, Torch_DIR=f"{good}/share/cmake/Torch"), f"{good}\n")
    expect(shell(here, offered, LibTorch_ROOT=str(old)), "none\n" + left_out(old))
    # A Python counts when pip has completed its torch.
    make_torch(packages, is_complete=False)
    expect(shell(here, offered), "none\n")
    (packages / "torch-2.13.0.dist-info/INSTALLER").write_text("pip\n")
    expect(shell(here, offered), f"{packages}/torch\n")
    (packages / "torch/lib/libtorch_cpu.so").unlink()
    expect(shell(here, offered), "none\n")


def an_interrupted_installation_is_completed(folder):
    here = make_checkout(folder / "here")
    packages = here / ".venv/lib/python3.11/site-packages"
    make_torch(packages, is_complete=False)
    (packages / "other.dist-info").mkdir()
    (packages / "other.dist-info/INSTALLER").write_text("pip\n")
    make_python(here / "bin/python3", folder / "nothing")
    # This one's pip installs torch unless its metadata is there.
    make_program(here / ".venv/bin/python", f"""case "$*" in
*"pip install"*) [ -d '{packages}/torch-2.13.0.dist-info' ] && exit 0
  mkdir '{packages}/torch-2.13.0.dist-info' && cd '{packages}/torch-2.13.0.dist-info' && touch INSTALLER METADATA ;;
*pip*) ;;
*) PYTHONPATH='{packages}' exec '{sys.executable}' -S "$@" ;;
esac""")
    ensure = "ensure_libtorch; cat .cache/libtorch"
    expect(shell(here, ensure), f"dev: making .venv with torch 2.13.0\n{packages}/torch\n")
    assert (packages / "other.dist-info").exists()
    expect(shell(here, ensure), f"{packages}/torch\n")


def without_root_other_compilers_do(folder):
    here = make_checkout(folder / "here")
    for name, text in (("apt-get", "exit 1"), ("apt-cache", "exit 1"), ("dpkg-query", 'printf "$INSTALLED"'),
                       ("id", "echo 1000"), ("sudo", "exit 1")):
        make_program(here / "bin" / name, text)
    script = """command() { if [ "$2" = clang++-16 ]; then return 1; fi; builtin command "$@"; }
default_compiler() { echo clang++-18; }
install_packages"""
    expect(shell(here, script, INSTALLED="installed"), "dev: no clang-16 here; clang++-18 compiles\n")
    said = shell(here, script, status=1, INSTALLED="")
    assert said.startswith("dev: not root and no sudo; ask for: apt-get install clang-16 g++ lld"), said


def unknown_words_are_refused_in_one_line(folder):
    here = make_checkout(folder / "here")
    make_program(here / "bin/python3", "echo ran >&2")
    for words, said in ((("fmt", "--chek"), "fmt: unknown option '--chek' (--check)"),
                        (("lint", "--qick"), "lint: unknown option '--qick' (--quick)"),
                        (("clean", "--al"), "clean: unknown option '--al' (--all)"),
                        (("soak", "abc"), "soak: expected MINUTES, found 'abc'"),
                        (("soak", "1", "2"), "soak: expected MINUTES, found '1 2'"),
                        (("test", "--al"), "test: unknown option '--al' (--all)"),
                        (("fmt",), "fmt: fatal: not a git repository"),
                        (("lint", "--quick"), "lint --quick: fatal: not a git repository")):
        done = run(here, "./dev", *words)
        lines = done.stderr.splitlines()
        assert done.returncode == 1 and len(lines) == 1 and lines[0].startswith(f"dev: {said}"), (words, done)


def sources_may_be_removed_and_have_any_name(folder):
    here = make_checkout(folder / "here")
    for name in ("a b.cc", "gone.h", "src/ü'.cc", "src/kept.cc", "text.md"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "a")):
        expect(run(here, *git, *words).returncode, 0)
    (here / "gone.h").unlink()
    (here / "new.cc").write_text("")
    make_program(here / "bin/tool", 'for word; do echo "<$word>"; done')
    tool = "clang_tool() { echo tool; }\n"
    expect(sorted(shell(here, tool + "format_sources").splitlines()),
           ["<-i>", "<a b.cc>", "<new.cc>", "<src/kept.cc>", "<src/ü'.cc>"])
    assert shell(here, tool + "format_sources --check").startswith("<--dry-run>\n<--Werror>\n")
    expect(shell(here, "changed_sources"), "")
    (here / "src/ü'.cc").write_text("//\n")
    (here / "src/new one.cc").write_text("")
    expect(shell(here, "changed_sources"), "src/new one.cc\0src/ü'.cc\0")


def clean_keeps_the_only_copies(folder):
    here = make_checkout(folder / "here")
    for name, text in (("src/a.cc", '#include "base/mutant.h"\nwrong\n'), ("build/mutants/a.cc", "right\n"),
                       (".venv/a", "")):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    expect(run(here, "./dev", "clean").returncode, 0)
    expect((here / "src/a.cc").read_text(), "right\n")
    assert not (here / "build").exists() and (here / ".venv").exists()
    expect(run(here, "./dev", "clean", "--all").returncode, 0)
    assert not (here / ".venv").exists() and not (here / ".cache").exists()


def suppressions_are_found_in_any_folder(folder):
    here = make_checkout(folder / "two words")
    said = shell(here, 'echo "$TSAN_OPTIONS"')
    assert said.endswith(f":suppressions='{here}/tests/tsan_suppressions.txt'\n"), said


def only_a_registry_that_lacks_headers_is_a_skip(folder):
    libtorch = make_libtorch(folder / "torch")
    for text, code in (("ERROR: No matching distribution found for nvidia-cuda-runtime==13.0.96", 77),
                       ("ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='a')", 77),
                       ("WARNING: Connection broken\nERROR: [Errno 28] No space left on device", 1),
                       ("No module named pip", 77)):
        (folder / "pip").mkdir(exist_ok=True)
        (folder / "pip/__init__.py").write_text("")
        (folder / "pip/__main__.py").write_text(f"import sys\nsys.exit({text!r})\n")
        done = run(folder, sys.executable, "-B", ROOT / "tools/cuda.py", "c++", libtorch, folder / "headers",
                   PYTHONPATH=str(folder))
        assert done.returncode == code and text.splitlines()[-1] in done.stdout + done.stderr, (text, done)


def a_mirror_that_breaks_off_is_one_line(folder):
    spec = importlib.util.spec_from_file_location("fetch_data", ROOT / "tools/fetch_data.py")
    fetch_data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fetch_data)

    def break_off(*_, **__):
        raise http.client.IncompleteRead(b"a")

    fetch_data.urllib.request.urlopen, fetch_data.shutil.which = break_off, lambda _: None
    sys.argv[1:] = ["mnist", str(folder)]
    with open(folder / "said", "w") as said, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        expect(fetch_data.main(), 1)
    assert "IncompleteRead" in (folder / "said").read_text().splitlines()[-1]


CHECKS = (a_build_folder_belongs_to_its_checkout_and_libtorch, a_copy_is_set_up_again,
          an_unsuitable_libtorch_is_left_out, an_interrupted_installation_is_completed,
          without_root_other_compilers_do, unknown_words_are_refused_in_one_line,
          sources_may_be_removed_and_have_any_name, clean_keeps_the_only_copies, suppressions_are_found_in_any_folder,
          only_a_registry_that_lacks_headers_is_a_skip, a_mirror_that_breaks_off_is_one_line)
for check in CHECKS:
    with tempfile.TemporaryDirectory(prefix="lockstep-dev-") as name:
        check(pathlib.Path(name).resolve())
print(f"dev: {len(CHECKS)} checks of its scripts")
