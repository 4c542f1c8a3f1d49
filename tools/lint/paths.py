#!/usr/bin/env python3
"""Counts the files that a reader opens to follow one call from its public function to the bytes.

A path is a list of the functions and types that the call passes. The script searches for each definition, so a name
that was removed or renamed is an error, and the count follows when files are merged or split. A definition in a
source also counts its header.
"""
import pathlib
import re
import sys

# Title, maximum number of files, functions and types.
PATHS = [
    ("all_reduce of a float tensor of 64 KiB in the arena, shm", 35,
     ["comm/api/Group::all_reduce", "GroupState::post", "GroupState::post_to_backend", "Backend::check_process", "view_of", "dtype_of",
      "FlightRecorder::note_post", "engines/shm/Group::post", "SharedGroup::fail", "Channel::fill_next",
      "Channel::post_next", "choose_path", "Staged::must_precede", "engines/shm/Operation::publish", "engines/shm/Operation::look", "engines/shm/Plan::segment",
      "Channel::claim_next", "ProgressEngine::post", "ProgressEngine::wait", "engines/shm/Operation::run", "Peers::ring",
      "comm/kernels/combine", "Work::wait", "GroupState::wait"],
     ["ShmBackend", "Op", "CallId", "DType", "Work", "Call", "Backend", "CallView", "GroupBlock", "Slot", "ChannelMemory", "Plan", "Peers",
      "Channel", "SharedGroup", "ProgressEngine", "SpinPolicy", "Combination"],
     ["combines"]),
]
FOLDERS = ("include/lockstep/comm", "src/comm/api", "src/comm/backend", "src/comm/call", "src/comm/diagnose",
           "src/comm/engines/shm", "src/comm/kernels")


def sources_of(root):
    return {path: path.read_text() for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
            if path.suffix in (".h", ".cc")}


def found(sources, name, pattern):
    files = [path for path, text in sources.items() if re.search(pattern, text, re.MULTILINE)]
    if len(files) != 1:
        raise SystemExit(f"paths: {name}: expected one definition, found {[str(path) for path in files]}")
    return files[0]


# Functions are searched in sources; "FOLDER/" before a name restricts the search if the name alone is not unique.
def file_of_function(sources, name):
    folder, _, short = name.rpartition("/")
    files = {path: text for path, text in sources.items() if path.suffix == ".cc" and folder in str(path)}
    return found(files, name, rf"^[\w:&<>*\[\] ]*\b{re.escape(short)}\([^;{{}}]*\)[^;{{}}]*\{{")


def files_of(sources, functions, types, predicates):
    files = {file_of_function(sources, name) for name in functions}
    files |= {found(sources, name, rf"^(?:class|struct|enum class) (?:\[\[nodiscard\]\] |alignas\(\d+\) )?{name}\b[^;\n]*\{{")
              for name in types}
    files |= {found(sources, name, rf"constexpr bool {name}\(") for name in predicates}
    headers = {path.with_suffix(".h") for path in files if path.name != "backend.cc" or "shm" not in str(path)}
    return files | {path for path in headers if path in sources}


def main(root):
    sources = sources_of(root)
    problems = 0
    for title, most, functions, types, predicates in PATHS:
        files = files_of(sources, functions, types, predicates)
        lines = sum(sources[path].count("\n") for path in files)
        print(f"{title}: {len(files)} files, {lines} lines (at most {most} files)")
        for path in sorted(files):
            print(f"  {path.relative_to(root)}")
        problems += len(files) > most
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
