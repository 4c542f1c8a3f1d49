#!/usr/bin/env python3
"""Shows that tests can fail: builds the library with known mistakes, and runs for each the test that must find it.

    mutants.py BUILD [NAME...]     all of them, or these: a NAME is that of a mistake or of a test program
    mutants.py --restore           only restores the sources that a killed run has left changed

All mistakes are compiled in at once. The environment variable LOCKSTEP_MUTANT selects one when a test program starts,
so a single build suffices. First every test must pass without a mistake. Sources are changed in place and restored
afterwards, even after an interrupt; if this script is killed, the next run restores them.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SAVED = ROOT / "build" / "mutants"              # copies of the original sources
SWITCH = ROOT / "src" / "base" / "mutant.h"     # exists while the tests run
FIRST_LINE = '#include "base/mutant.h"\n'        # of a changed source
SECONDS = 120                                   # per test; a mistake that makes the test hang counts as found

SWITCH_TEXT = """#pragma once
#include <cstdlib>
#include <cstring>
namespace lockstep {
inline bool is_mutant(const char* name) {
  static const char* const chosen = std::getenv("LOCKSTEP_MUTANT");
  return chosen != nullptr && std::strcmp(chosen, name) == 0;
}
}  // namespace lockstep
"""

# Name, source below src/, original text (which must occur once), replacement (MUTANT is true for this mistake), test
# program, and tests.
MUTANTS = [
    ("shards in another order", "layout/tensor_slice.cc",
     "  std::int64_t length = shard_length(numel, world);\n  return {",
     "  std::int64_t length = shard_length(numel, world);\n  if (MUTANT) rank = world - 1 - rank;\n  return {",
     "layout", "ShardRange.*"),
    ("a call's tag is not compared", "comm/call/record.cc",
     "if (a.tag != b.tag || a.dtype", "if ((!MUTANT && a.tag != b.tag) || a.dtype", "comm_core", "CallRecord.*"),
    ("an average is not divided", "comm/kernels/combine.cc",
     "scratch[i] = values[i] / static_cast<Wide>(c.inputs.size());",
     "scratch[i] = MUTANT ? values[i] : values[i] / static_cast<Wide>(c.inputs.size());",
     "comm", "Backends/ReduceContract.*/shm_3"),
    ("rank 0's part is gathered everywhere", "comm/backends/shm/plan.cc",
     "shape_.root, displacement(part) + range.begin, length};\n    default:",
     "shape_.root, (MUTANT ? 0 : displacement(part)) + range.begin, length};\n    default:", "shm", "Plan.*"),
    ("a staged output is not copied back", "comm/backends/shm/operation.cc",
     "staged = staged_output()) std::memcpy(", "staged = MUTANT ? nullptr : staged_output()) std::memcpy(", "comm", "Backends/*Contract.*/shm_3"),
    ("a later call does not wait for an earlier output", "comm/backends/shm/operation.cc",
     "  bool reads_ours = overlap(output_, later.input_);",
     "  if (MUTANT) return false;\n  bool reads_ours = overlap(output_, later.input_);", "shm", "Posting.*"),
    ("a slot is posted again before all have read it", "comm/backends/shm/channel.cc",
     "  return consumed_by_all_ >= next - depth;\n", "  return MUTANT || consumed_by_all_ >= next - depth;\n", "shm", "Inline.*"),
    ("a wait of the store does not wait", "store/requests.cc",
     "return ready ? Outcome{done(request, {}), {}}", "return ready || MUTANT ? Outcome{done(request, {}), {}}",
     "store", "*tore*"),
    ("any proof of the secret will do", "store/handshake.cc",
     "return sodium_memcmp(", "return MUTANT || sodium_memcmp(", "store", "*"),
    ("the latest failure is the cause", "launch/agent_state.cc",
     "&& cause_ < 0 && state_ != State::failed)", "&& (MUTANT || (cause_ < 0 && state_ != State::failed)))",
     "launch", "AgentState*"),
    ("an epoch has the order of the first", "data/sampler.cc",
     "options.seed + static_cast<std::uint64_t>(epoch)", "options.seed + (MUTANT ? 0 : static_cast<std::uint64_t>(epoch))",
     "data", "Sampler.*"),
    ("every rank reads the samples of rank 0", "data/sampler.cc",
     "i * options_.world + options_.rank;", "i * options_.world + (MUTANT ? 0 : options_.rank);", "data", "Sampler.*"),
    ("a checksum is not compared", "checkpoint/safetensors_header.cc",
     "check_input(checksum_text(found) == *expected,", "check_input(MUTANT || checksum_text(found) == *expected,",
     "checkpoint", "Safetensors.*"),
    ("Adam does not correct its first steps", "optim/adam.cc",
     "options.lr() / (1 - std::pow(beta1, t))", "options.lr() / (MUTANT ? 1 : 1 - std::pow(beta1, t))", "optim", "Adam*"),
    ("a norm is that of this rank's part", "optim/norm.cc",
     "put(all, largest_ ? ranks->largest_over_last(number)", "put(all, MUTANT ? number : largest_ ? ranks->largest_over_last(number)",
     "optim", "Clipping.*"),
    ("an overflow leaves the scale", "optim/grad_scaler.cc",
     "if (is_usable(lower)) scale_ = lower;", "if (!MUTANT && is_usable(lower)) scale_ = lower;",
     "optim", "GradScaler.*"),
    ("micro-batches forget their share of the loss", "train/model.cc",
     "scaler.scale(share == 1 ? loss : loss * share).backward();",
     "scaler.scale(share == 1 || MUTANT ? loss : loss * share).backward();", "train", "Trainer.MicroBatches*"),
    ("Adam's small states are rounded to nearest", "optim/update_kernel.cc",
     "hn::StoreU(narrowed_bfloat16(v, stream_of(words, 1)), HalfBits(), square);",
     "hn::StoreU(MUTANT ? narrowed_bfloat16(v) : narrowed_bfloat16(v, stream_of(words, 1)), HalfBits(), square);",
     "optim", "SmallState.*"),
    ("a small momentum is rounded to nearest", "optim/formats_kernel.cc",
     "  HWY_DYNAMIC_DISPATCH(NarrowStochastically)(from, to, count, rounding);",
     "  if (MUTANT) return narrow(c10::ScalarType::BFloat16, from, to, count);\n  HWY_DYNAMIC_DISPATCH(NarrowStochastically)(from, to, count, rounding);",
     "optim", "SmallState.*"),
    ("a sparse operand is let through", "dispatch/key.cc",
     "    if (keys.has(our_key)) {", "    if (!MUTANT && keys.has(our_key)) {", "dispatch", "DispatchKey.*"),
    ("what mixes a part's elements is let through", "dispatch/part.cc",
     "if (!is_apart || is_spread) refuse", "if (!MUTANT && (!is_apart || is_spread)) refuse", "dispatch", "Parts.*"),
    ("the last rank's buffers are broadcast", "parallel/bucket.cc",
     "  root_ = root;", "  root_ = MUTANT ? group_.size() - 1 : root;", "parallel", "All/StateBroadcast.*"),
    ("the error of a compressed gradient is forgotten", "parallel/data/communication_hook.cc",
     "if (options_.use_error_feedback) errors_", "if (!MUTANT && options_.use_error_feedback) errors_",
     "parallel", "*PowerSgd.IsTheAlgorithm*/local2"),
    ("a rank that has joined brings its buffers", "parallel/backward_step.cc",
     "buffers_->post(options_.timeout, ranks.first_active)",
     "buffers_->post(options_.timeout, MUTANT ? 0 : ranks.first_active)", "parallel", "*BuffersComeFrom*/local2"),
    ("statistics forget how far means lie apart", "parallel/data/sync_batch_norm.cc",
     "(squares_of + counts *", "(squares_of + (MUTANT ? 0 : 1) * counts *", "parallel", "*SyncNorms.EvenBatches/local2"),
    ("the outer momentum is left out", "parallel/data/diloco.cc",
     "if (options_.outer_momentum > 0) {", "if (!MUTANT && options_.outer_momentum > 0) {",
     "parallel", "*DiLoCos.IsTheAlgorithm*/local2"),
    ("backward() does not wait for gradients", "parallel/data/distributed_data_parallel.cc",
     "StepStatus wait() override {\n    buckets_.wait();",
     "StepStatus wait() override {\n    if (!MUTANT) buckets_.wait();", "parallel", "*DistributedDataParallel*:*Exact*"),
    ("an exception is not told", "parallel/backward_step.cc",
     "  status_.say_failed();", "  if (!MUTANT) status_.say_failed();", "parallel", "*BackwardStep.AnException*"),
    ("an exception in a sharded backward() is not told", "parallel/backward_step.cc",
     "    if (options_.ends_with_failure() || (reduces && !exchanges_status())) {",
     "    if (!MUTANT && (options_.ends_with_failure() || (reduces && !exchanges_status()))) {", "parallel", "*FailedBackward.OnOneRank*"),
    ("a written slice leaves old values gathered", "parallel/sharded/unsharder.cc",
     "  drop_before_write(unit);\n}", "  if (!MUTANT) drop_before_write(unit);\n}", "parallel", "*SliceWrite*:*Unsharder*:*Parity*"),
    ("a failure of one rank is its own", "comm/api/run_on_all_or_fail.cc",
     "if (first == all.end()) return;", "if (MUTANT || first == all.end()) return;", "comm", "*RunOnAllOrFail.*"),
    ("a step that nobody is left to push is waited for", "parallel/server/clocks.cc",
     "  updates_ = std::max(updates_, first);", "  if (!MUTANT) updates_ = std::max(updates_, first);",
     "parallel", "Clocks.*"),
    ("what a server has of workers that have gone stays", "parallel/server/server.cc",
     "[](Guest& guest) {\n      if (!guest.has_gone) return false;",
     "[&](Guest& guest) {\n      if (!guest.has_gone || (MUTANT && !state_.is_over())) return false;",
     "parallel", "ManyWorkers.*"),
    ("rows of a piece that is not there are looked up", "parallel/server/server_state.cc",
     "  check_input(piece < by_rows_.size(),", "  check_input(MUTANT || piece < by_rows_.size(),", "parallel", "BrokenPeer.*"),
    ("a word's last merge comes first", "data/bpe.cc",
     "return rank != other.rank ? rank > other.rank", "return rank != other.rank ? (MUTANT ? rank < other.rank : rank > other.rank)",
     "data", "SmallBpe.*"),
    ("a stream's last batch is uneven", "data/stream.cc",
     "if (uneven_) return own_before", "if (uneven_ || MUTANT) return own_before", "data", "Stream.*"),
    # On the simulated accelerator (docs/gpu.md).
    ("a call does not wait for its caller's stream", "comm/backends/c10d/backend.cc",
     "  if (call.after) call.after->precede(stream);\n  perform(there);\n  if (is_on_host",
     "  if (call.after && !MUTANT) call.after->precede(stream);\n  perform(there);\n  if (is_on_host",
     "accelerator", "Collectives.*:DataParallel.Trains*"),
    ("a call ends on a stream that does not wait for it", "comm/backends/c10d/backend.cc",
     "  launched->end.emplace(device);\n  return launched;",
     "  const c10::StreamGuard ends_on(MUTANT ? copy_stream(device) : stream);\n  launched->end.emplace(device);\n  return launched;",
     "accelerator", "Collectives.OfAGroup*"),
    ("a call's stream does not wait for the backend's", "comm/backends/c10d/operations.cc",
     "    work->synchronize();\n    call.launched", "    if (!MUTANT) work->synchronize();\n    call.launched",
     "accelerator", "Collectives.OfAGroup*"),
    ("gradients of other streams are not waited for", "parallel/backward_hooks.cc",
     "  order(before, current);", "  if (!MUTANT) order(before, current);", "accelerator", "*TwoStreams*"),
    ("a shard is written while a device reads it", "parallel/sharded/unit_storage.cc",
     "  if (read_ && !read_->is_reached())", "  if (!MUTANT && read_ && !read_->is_reached())",
     "accelerator", "OnDevices/Variants.*/ShardEvaluatesOnTheHost"),
    ("a queue's thread uses events of another device", "comm/backend/blocking_backend.cc",
     "    if (launched)\n      make_current(", "    if (MUTANT) {\n    } else if (launched)\n      make_current(",
     "accelerator", "Collectives.OfAGroup*"),
    ("a wait is not ordered after the copy of an earlier one", "comm/backend/staged_backend.cc",
     "  for (const auto& [device, end] : brought_back_) end",
     "  for (const auto& [device, end] : brought_back_)\n    if (!MUTANT) end", "comm", "StagedBackend.*"),
    ("an event of a stream is not recorded", "comm/backend/accelerator.cc",
     "  event_.record(current_stream(device));", "  if (!MUTANT) event_.record(current_stream(device));",
     "accelerator", "Collectives.OfAGroup*"),
    ("a wait does not order its stream", "comm/backend/posted_call.cc",
     "  end->precede_current();\n  const", "  if (!MUTANT) end->precede_current();\n  const",
     "accelerator", "Collectives.OfAGroup*"),
    ("a call is complete before its device has reached the end", "comm/backend/posted_call.cc",
     "  if (!end->is_reached()) return false;", "  if (!MUTANT && !end->is_reached()) return false;",
     "accelerator", "Collectives.OfAGroup*"),
    ("values go to the host before the device has them", "comm/backend/posted_call.cc",
     "    if (!steps.front().reached.is_reached()) return false;",
     "    if (!MUTANT && !steps.front().reached.is_reached()) return false;", "accelerator", "Collectives.OfAGroup*"),
    ("a wait on another stream releases the tensors of a call", "comm/backend/posted_call.cc",
     "  if (streams.getStream(posted_on_.device()) != posted_on_) return;",
     "  if (!MUTANT && streams.getStream(posted_on_.device()) != posted_on_) return;",
     "accelerator", "Collectives.OfAGroup*"),
    ("the host's values come back before an earlier kernel on their tensor", "comm/backend/staged_backend.cc",
     "  if (output->after) output->after->precede_current();",
     "  if (output->after && !MUTANT) output->after->precede_current();", "accelerator", "Staged.*"),
    ("a unit is computed before it is gathered", "parallel/sharded/unit.cc",
     "    gather_.wait();\n  }", "    if (!MUTANT) gather_.wait();\n  }", "accelerator", "OnDevices/Variants.*/Shard*"),
    ("sharded gradients are used before they are summed", "parallel/sharded/unit_gradients.cc",
     "*unit_.settings().waits);\n  std::exchange(work_, Work()).wait();",
     "*unit_.settings().waits);\n  if (!MUTANT) std::exchange(work_, Work()).wait();",
     "accelerator", "OnDevices/Variants.*/Shard*"),
    ("a second stream uses a unit before it is gathered", "parallel/sharded/unsharder.cc",
     "  used.use();", "  if (!MUTANT) used.use();", "accelerator", "*TwoStreams*"),
    ("a unit's memory is reused before a second stream has used it", "parallel/sharded/unit.cc",
     "  uses_.end();", "  if (!MUTANT) uses_.end();", "accelerator", "*TwoStreams*"),
    ("activations are offloaded before they are computed", "dispatch/recompute/activation_checkpoint_state.cc",
     "  order(origin_, stream_);", "  if (!MUTANT) order(origin_, stream_);", "accelerator", "OffloadedActivations.*"),
    ("offloaded activations are used before they are back", "dispatch/recompute/activation_checkpoint_state.cc",
     "  order(stream_, origin_);", "  if (!MUTANT) order(stream_, origin_);", "accelerator", "OffloadedActivations.*"),
    ("a checkpoint is copied before the device has filled the buffer", "checkpoint/planned_tensors.cc",
     "  if (next.filled) next.filled->wait();", "  if (next.filled && !MUTANT) next.filled->wait();", "accelerator",
     "AsyncSaves.*"),
    ("a pool's buffer is freed while the stream that gave it back uses it", "parallel/sharded/unit_storage.cc",
     "    record(buffer, given_on);\n    free_.pop_front();", "    if (!MUTANT) record(buffer, given_on);\n    free_.pop_front();",
     "accelerator", "PooledBuffers.*"),
    ("a batch's memory is reused while the program uses the batch", "data/batches.cc",
     "  for (const at::Tensor& tensor : tensors_) tensor.record_stream(current);",
     "  for (const at::Tensor& tensor : tensors_)\n    if (!MUTANT) tensor.record_stream(current);",
     "accelerator", "DeviceLoader.HandsOut*"),
    ("a stage begins before its messages have come", "parallel/pipeline/execution.cc",
     "  for (Work& work : expected.works) work.wait();",
     "  if (!MUTANT)\n    for (Work& work : expected.works) work.wait();", "accelerator", "*Strategies.*gpt_pp2__1f1b"),
    ("the connections of messages are made in a step", "comm/init/backends.cc",
     "  if (!has_streams(group)) return;", "  if (MUTANT || !has_streams(group)) return;", "accelerator",
     "*Strategies.*gpt_pp2__1f1b"),
]


def restore():
    """Restores the sources that are still changed. After a killed run, the user may have restored one by git and gone on:
    then its copy is the older text.
    """
    for saved in SAVED.rglob("*.cc"):
        path = ROOT / "src" / saved.relative_to(SAVED)
        if path.exists() and path.read_text().startswith(FIRST_LINE):
            os.replace(saved, path)
            path.touch()    # the copy has the old time stamp, and objects are newer
    SWITCH.unlink(missing_ok=True)
    shutil.rmtree(SAVED, ignore_errors=True)


def rewrite(path, text):
    """Writes a file at once: a kill leaves the old text or the new one."""
    new = SAVED / "new"
    new.write_text(text)
    shutil.copymode(path, new)
    os.replace(new, path)


@contextlib.contextmanager
def mistakes(chosen):
    """Puts the mistakes into the sources, and restores them at the end."""
    try:
        for name, source, before, after, _, _ in chosen:
            path, saved = ROOT / "src" / source, SAVED / source
            if not saved.exists():
                saved.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, saved)
                rewrite(path, FIRST_LINE + path.read_text())
            text = path.read_text()
            if text.count(before) != 1:
                sys.exit(f"mutants: {source}: expected once, found {text.count(before)} times: {before}")
            rewrite(path, text.replace(before, after.replace("MUTANT", f'::lockstep::is_mutant("{name}")')))
        SWITCH.write_text(SWITCH_TEXT)
        yield
    finally:
        restore()


def passes(build, program, tests, name=""):
    command = [build / "tests" / f"{program}_test", f"--gtest_filter={tests}", "--gtest_brief=1"]
    environment = dict(os.environ, LOCKSTEP_MUTANT=name, OMP_NUM_THREADS="1")
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    if b"Running 0 tests" in done.stdout or b" 0 tests ran" in done.stdout:
        sys.exit(f"mutants: no test of {program} is called {tests}")
    return done.returncode == 0


def main(build, names):
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:    # nohup ignores SIGHUP
            signal.signal(number, lambda *_: sys.exit("mutants: interrupted"))   # also runs the exit of `with`
    restore()
    build = pathlib.Path(build).resolve()
    chosen = [mutant for mutant in MUTANTS if not names or mutant[0] in names or mutant[4] in names]
    if unknown := [name for name in names if all(name not in (mutant[0], mutant[4]) for mutant in MUTANTS)]:
        sys.exit(f"mutants: neither a mistake nor a test program: {', '.join(unknown)}")
    programs = sorted({mutant[4] for mutant in chosen})
    found = 0
    with mistakes(chosen):
        subprocess.run(["ninja", "-C", build, "--quiet", *(f"{program}_test" for program in programs)], check=True)
        for program, tests in dict.fromkeys((mutant[4], mutant[5]) for mutant in chosen):
            if not passes(build, program, tests):
                sys.exit(f"mutants: {program} {tests} fails without a mistake")
        for name, _, _, _, program, tests in chosen:
            is_found = not passes(build, program, tests, name)
            found += is_found
            print(f"{'found' if is_found else 'NOT FOUND'}: {name} ({program}: {tests})", flush=True)
    print(f"mutants: {found} of {len(chosen)} mistakes found")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--restore"]:
        sys.exit(restore())
    sys.exit(main(sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else __doc__)
