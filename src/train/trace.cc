#include "train/trace.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cerrno>
#include <memory>
#include <set>
#include <system_error>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr std::int64_t left_out = 2;

profiler::ProfilerConfig config() {
  return profiler::ProfilerConfig(profiler::ProfilerState::KINETO);
}

std::set<ActivityType> activities() { return {ActivityType::CPU}; }

}  // namespace

fs::path trace_file(const fs::path& file, int rank, int ranks) {
  if (ranks == 1) return file;
  fs::path own = file;
  own.replace_extension(formatted(".rank{}{}", rank, file.extension().string()));
  return own;
}

Trace::Trace(const Options& options, const Group& world) : steps_(options.trace_steps) {
  if (!options.trace.empty()) file_ = trace_file(options.trace, world.rank(), world.size());
}

Trace::~Trace() {
  if (is_recording_) (void)profiler::disableProfiler();
}

void Trace::start() {
  profiler::prepareProfiler(config(), activities());
  profiler::enableProfiler(config(), activities());
  is_recording_ = true;
}

void Trace::begin_step() {
  if (!file_.empty() && step_++ == left_out) start();
}

bool Trace::is_complete() const { return is_recording_ && step_ == left_out + steps_; }

// The profiler says nothing of a file that it cannot write, so none is there before.
void Trace::write() {
  if (!is_recording_) return;
  is_recording_ = false;
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  std::error_code error;
  fs::remove(file_, error);
  result->save(file_.string());
  const bool is_there = fs::file_size(file_, error) > 0 && !error;
  if (!is_there)
    throw SystemError("writing the trace " + file_.string(), error ? error.value() : EIO);
}

}  // namespace lockstep::train
