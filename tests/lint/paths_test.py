"""The count of a path finds a definition that is gone or stands twice, a path that has grown, and false documents."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("include/lockstep", "src", "docs")
GROUP_STATE = "src/comm/api/group_state.cc"
HANDLE = "src/parallel/handle.cc"


def expect(change, status, text):
    """What the count says of the tree after change(folder)."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for each in FOLDERS:
            shutil.copytree(ROOT / each, folder / each)
        change(folder)
        command = [sys.executable, ROOT / "tools/lint/paths.py", folder]
        done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    right = done.returncode == status and text in said
    assert right, f"expected {status} and '{text}', found {done.returncode}: {said}"


def rename(folder):
    path = folder / GROUP_STATE
    path.write_text(path.read_text().replace("GroupState::post_to_backend(", "GroupState::hand_over("))


def copy(folder):
    shutil.copy(folder / GROUP_STATE, folder / "src/comm/api/again.cc")


def move(folder, source, begin_of_function, target):
    path = folder / source
    text = path.read_text()
    begin = text.index(begin_of_function)
    end = text.index("\n}\n", begin) + 3
    (folder / target).write_text(text[begin:end])
    path.write_text(text[:begin] + text[end:])


def divide_file(folder):
    move(folder, GROUP_STATE, "void Work::wait()", "src/comm/api/work.cc")


def divide_module(folder):
    move(folder, HANDLE, "std::vector<at::Tensor> Handle::parameters()", "src/parallel/handle_parameters.cc")


def replace_in_document(old, new):
    def change(folder):
        path = folder / "docs/life_of_an_all_reduce.md"
        path.write_text(path.read_text().replace(old, new))
    return change


def rename_header(folder):
    (folder / "src/apps/commands.h").rename(folder / "src/apps/command.h")


expect(lambda folder: None, 0, "all_reduce of a float tensor of 64 KiB in the arena, shm: 26 files")
expect(rename, 1, "GroupState::post_to_backend: expected one definition, found []")
expect(copy, 1, "expected one definition, found [")
expect(divide_file, 1, "27 files")
expect(divide_module, 1, "24 modules")
expect(rename_header, 1, "src/apps/commands.h: expected one header, found none")
expect(replace_in_document("`Operands::place()`", "`Operands::put()`"), 1, "names Operands::put(), which is not")
expect(replace_in_document("../src/comm/backends/shm/plan.cc", "plan"), 1, "does not link src/comm/backends/shm/p")
print("paths: finds all seven")
