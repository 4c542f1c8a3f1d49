#!/usr/bin/env python3
"""Counts the files or modules that a reader opens to follow one call from its public function to what it does.

A path is a list of the functions and types that the call passes, without leaf helpers and objects that are only made. The
script looks for each definition, so a name that is gone or was renamed is an error, and a merged or divided file changes the
count by itself. A definition in a source counts its header, too. A module is a header with its source.

Documents about comm are held to the sources: each function and type that one names must be there, and the document of a path
must link every file of it (of a source and its header, one).
"""
import dataclasses
import pathlib
import re
import sys


@dataclasses.dataclass
class Path:
    title: str
    most: int
    counted: str          # "files" or "modules"
    folders: tuple        # below src and include/lockstep
    functions: list       # "PLACE/" before a name, a part of its file's path, if the name alone is not unique
    types: list           # likewise
    without: tuple = ()   # headers that declare other things than what the path passes
    also: tuple = ()      # headers that have another name than their sources
    document: str = ""    # that tells the path


SHM = "backends/shm"
PATHS = [
    Path("all_reduce of a float tensor of 64 KiB in the arena, shm", 26, "files",
         ("comm/api", "comm/backend", "comm/call", "comm/diagnose", f"comm/{SHM}", "comm/kernels"),
         ["comm/api/Group::all_reduce", "GroupState::post", "GroupState::post_to_backend", "Backend::check_process", "dtype_of",
          "FlightRecorder::note_post", "GroupMember::post", "SharedGroupState::fail", "Operands::place", "Operands::must_precede",
          "Operands::stage", "Operands::deliver", "Channel::fill_next", "Channel::post_next", f"{SHM}/Operation::publish",
          f"{SHM}/Operation::poll", f"{SHM}/Plan::segment", "Channel::claim_next", "ProgressEngine::post",
          "ProgressEngine::wait", f"{SHM}/Operation::run", "comm/kernels/combine", "Work::wait", "GroupState::wait", "combines"],
         ["ShmBackend", "Op", "CallId", "DType", "CallInfo", "Work", "Call", "Backend", "GroupBlock", "Slot", "GroupMember",
          "ChannelMemory", "Plan", "PeerMappings", "Channel", "SharedGroupState", "ProgressEngine", "SpinPolicy", "Operands", "Combination"],
         without=("src/comm/backends/shm/backend.h",), document="docs/life_of_an_all_reduce.md"),
    Path("a killed rank on shm, from the watcher to the flight record", 28, "files",
         ("comm/api", "comm/backend", "comm/call", "comm/diagnose", f"comm/{SHM}"),
         ["Watcher::run", "Endpoint::on_peer_end", "GroupMember::fail_by_end", "lost_rank",
          "PostedCalls::last", "lost_sentence", "describe_fully", "GroupNames::ranks", "SharedGroupState::fail", "PeerMappings::ring",
          "ProgressEngine::wait", "GroupMember::throw_failure", "GroupMember::settle", "SharedGroupState::throw_failure", "error_of",
          "Work::wait", "GroupState::wait",
          "FlightRecorder::note_failure", "FlightRecorder::json_locked"],
         ["ShmBackend", "Op", "Work", "Backend", "PeerMappings", "Slot", "GroupBlock", "CallRecord", "GroupNames", "DType", "LostRank",
          "FailureKind", "shm/peers/PeerLiveness", "Channel", "Operation", "SharedGroupState", "ProgressEngine"],
         without=("src/comm/backends/shm/backend.h",)),
    Path("init() on shm under `lockstep run`", 50, "files",
         ("comm", "rank_env", "store", "matmul"),
         ["comm/init/init_at", "detect_rank", "check_only_copy", "watch_agent", "matmul/choose", "open_run_store",
          "store/open_store", "read_secret", "check_rank_ends", "MeetingStore::wait_in_parts", "handshake", "choose_backend",
          "visible_devices", "usable_devices", "comm/init/choose", "use_device", "accelerator_count", "device_names",
          "comm/init/make_backend", "warn_of_waiting_threads", "staged", "recorded_world", f"{SHM}/make",
          "Endpoint::make_block", "Arena::allocate_zeroed", "Allocator::allocate", "exchange_arenas", "comm/rendezvous/allgather_text",
          "GroupMember::add_channel", "Watcher::run", "ProgressEngine::start_helping", "ArenaTensors::~ArenaTensors"],
         ["RankInfo", "MeetingStore", "TcpStore", "WaitingCall", "Backend", "comm/group/Group", "GroupNames", "GroupState",
          "StagedBackend", "FlightRecorder", "ShmBackend", "Endpoint", "Arena", "PeerMappings", "GroupBlock", "SharedGroupState", "Channel",
          "ProgressEngine", "Watcher", "ArenaTensors"]),
    Path("lockstep run -n 2 PROGRAM, up to the second fork", 21, "files",
         ("apps", "base", "launch", "sys"),
         ["apps/lockstep/main", "run_command", "sys/run_program", "CommandOptions::read", "Agent::Run::run",
          "find_program", "serve_store", "OneRound::request_join", "RoundSession::begin_round", "RankProcesses::open",
          "OrphanReaper::OrphanReaper", "Worker::start", "rank_environment", "Process::spawn"],
         ["CommandOptions", "launch/agent/Agent", "RoundSource", "RoundSession", "RankProcesses", "OrphanReaper", "RankSpec",
          "Process"],
         also=("src/apps/commands.h",)),
    Path("one parameter through fully_shard() and AdamW", 23, "modules",
         ("dispatch", "layout", "optim", "parallel"),
         ["parallel/sharded/fully_shard", "check_memory", "plan_units", "names_path",
          "whole_slice", "Unit::take_parameters", "UnitStorage::make", "Unsharder::pin", "dispatch/intercept",
          "Call::redispatch", "bring_memory", "check_parts", "PartKinds::whole_part", "Handle::parameters",
          "BackwardStep::on_gradient", "StepWatch::watch", "StateBroadcast::post", "UnitReducer::post_ready",
          "UnitGradients::post", "AbsentGradients::leave_in_slice", "step_adam", "make_entries", "make_spans"],
         ["Call", "ShardOptions", "ShardedState", "Handle", "HandleState", "FlatLayout", "TensorSlice", "LazyStorage",
          "Part", "Unit",
          "UnitStorage", "Unsharder", "Reducer", "UnitGradients", "LazyGradient", "StepClock", "UpdateEntry", "ParameterSpan",
          "GradientHooks"]),
    Path("one linear on a global tensor", 17, "modules",
         ("dispatch", "global"),
         ["global/distribute", "dispatch/intercept", "run_by_delegate", "run_operation", "operation_of", "Arguments::add",
          "add_matmul_rules", "parse_rule", "decide", "global/choose", "converted", "global/redistribute", "PlainCheck::look",
          "MeshContext::of", "global/wrap", "global/cut"],
         ["Placement", "Spec", "MeshContext", "GlobalTensor", "Call", "Operation", "Arguments", "Rule", "RuleLine", "Decision",
          "Chosen", "PlainCheck"]),
]

# Documents about comm.
DOCUMENTS = ("docs/life_of_an_all_reduce.md", "docs/add_a_backend.md")
NAME = re.compile(r"`((?:\w+::)*)(\w+)(\(\))?`")
LINK = re.compile(r"\]\(\.\./([^)#]+)\)")


def sources_of(root, folders):
    public = {"comm" if folder.startswith("comm/") else folder for folder in folders}   # in one folder
    tops = [root / "include/lockstep" / folder for folder in public] + [root / "src" / folder for folder in folders]
    return {path: path.read_text() for top in tops for path in sorted(top.rglob("*")) if path.suffix in (".h", ".cc")}


# Each match of the pattern contains `word`, which is faster to find.
def found(sources, name, pattern, word):
    files = [path for path, text in sources.items() if word in text and re.search(pattern, text, re.MULTILINE)]
    if len(files) != 1:
        raise SystemExit(f"paths: {name}: expected one definition, found {[str(path) for path in files]}")
    return files[0]


def within(sources, place):
    return {path: text for path, text in sources.items() if place in path.with_suffix("").as_posix()}


# Functions are looked for in headers, if they are constexpr or inline there, and in sources.
def file_of_function(sources, name):
    folder, _, short = name.rpartition("/")
    files, word = within(sources, folder), short + "("
    inline = rf"^(?:\[\[nodiscard\]\] )?(?:constexpr|inline) [\w:&<>*]+ {re.escape(word)}"
    if any(word in text and re.search(inline, text, re.MULTILINE) for path, text in files.items() if path.suffix == ".h"):
        return found(files, name, inline, word)
    in_sources = {path: text for path, text in files.items() if path.suffix == ".cc"}
    return found(in_sources, name, rf"^[\w:&<>*\[\] ]*\b{re.escape(short)}\([^;{{}}]*\)[^;{{}}]*\{{", word)


def file_of_type(sources, name):
    folder, _, short = name.rpartition("/")
    pattern = rf"^(?:class|struct|enum class) (?:\[\[nodiscard\]\] |alignas\(\d+\) )?{short}\b(?!::)[^;\n]*\{{"
    return found(within(sources, folder), name, pattern, short)


def headers_of(path, root):
    parts = path.relative_to(root).with_suffix(".h").parts[1:]
    yield path.with_suffix(".h")
    yield root.joinpath("include/lockstep", *parts)
    if parts[0] == "comm":
        yield root.joinpath("include/lockstep/comm", parts[-1])


def files_of(path, sources, root):
    files = {file_of_function(sources, name) for name in path.functions}
    files |= {file_of_type(sources, name) for name in path.types}
    files |= {header for file in files if file.suffix == ".cc" for header in headers_of(file, root) if header in sources}
    for name in path.also:
        if root / name not in sources:
            raise SystemExit(f"paths: {name}: expected one header, found none")
        files.add(root / name)
    return {file for file in files if str(file.relative_to(root)) not in path.without}


def module_of(file, root):
    name = file.relative_to(root).with_suffix("").as_posix()
    return name.removeprefix("include/lockstep/").removeprefix("src/")


def is_there(texts, scopes, name, is_function):
    """Whether a source has the name, beside the last of its scopes if it has any."""
    scope = scopes.split("::")[-2] if scopes else ""
    pattern = rf"\b{name}\(" if is_function else rf"\b{name}\b"
    return any(re.search(pattern, text) and (not scope or re.search(rf"\b{scope}\b", text)) for text in texts)


def problems_of_document(root, document, path):
    text = (root / document).read_text()
    texts = [each.read_text() for folder in ("include/lockstep", "src/comm") for each in (root / folder).rglob("*.[hc]*")]
    for scopes, name, call in NAME.findall(text):
        if (call or name[0].isupper() or scopes) and not is_there(texts, scopes, name, bool(call)):
            yield f"{document}: names {scopes}{name}{call}, which is not there"
    links = {str(pathlib.PurePath(link).with_suffix("")) for link in LINK.findall(text)}
    for file in sorted(path):
        if str(file.relative_to(root).with_suffix("")) not in links:
            yield f"{document}: does not link {file.relative_to(root)}"


def main(root):
    problems, told = 0, {}
    for path in PATHS:
        sources = sources_of(root, path.folders)
        files = files_of(path, sources, root)
        names = {file.relative_to(root).as_posix() for file in files}
        if path.counted == "modules":
            names = {module_of(file, root) for file in files}
        lines = sum(sources[file].count("\n") for file in files)
        print(f"{path.title}: {len(names)} {path.counted}, {lines} lines (at most {path.most} {path.counted})")
        for name in sorted(names):
            print(f"  {name}")
        problems += len(names) > path.most
        told[path.document] = files
    for document in DOCUMENTS:
        for problem in problems_of_document(root, document, told.get(document, ())):
            print(problem)
            problems += 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
