#include "train/metrics.h"

#include "base/check.h"
#include "base/format.h"
#include "sys/bounded_json.h"
#include "sys/file_descriptor.h"
#include "sys/files.h"
#include "sys/mapped_file.h"
#include "sys/plain_file.h"
#include "sys/process_info.h"
#include "sys/signals.h"

#include <lockstep/base/error.h>

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

namespace lockstep::train {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr std::int64_t left_out_of_traces = 2;  // steps

bool is_row_until(std::string_view line, std::int64_t step) {
  try {
    const nlohmann::json row = sys::parse_json(line, {.depth = 4, .members = 1000, .values = 1000});
    return row.is_object() && row.contains("step") && row["step"].is_number_integer() &&
           row["step"] <= step;
  } catch (const BadInput&) {
    return false;
  }
}

// Returns the size of the file up to its last row whose step is at most `step`. Maps the file,
// because a long run that is restarted often must not read all of its rows each time.
std::size_t size_until(const std::filesystem::path& path, std::int64_t step) {
  const sys::PlainFile file(path);
  const sys::MappedFile mapped = sys::MappedFile::private_copy(file);
  std::string_view rows(reinterpret_cast<const char*>(mapped.bytes().data()),
                        mapped.bytes().size());
  std::size_t end = rows.rfind('\n');
  while (end != std::string_view::npos) {
    rows = rows.substr(0, end);
    const std::size_t before = rows.rfind('\n');
    if (is_row_until(rows.substr(before + 1), step)) return end + 1;
    end = before;
  }
  return 0;
}

double seconds_since(Pace::Clock::time_point start) {
  return std::chrono::duration<double>(Pace::Clock::now() - start).count();
}

// Returns the activities of the CPU and those of the device, which LibTorch calls by the name of
// its type.
std::set<ActivityType> activities_of(c10::DeviceType device) {
  std::set<ActivityType> activities{ActivityType::CPU};
  for (int i = 0; i < static_cast<int>(ActivityType::NUM_KINETO_ACTIVITIES); ++i) {
    const auto activity = static_cast<ActivityType>(i);
    if (torch::profiler::impl::actToString(activity) == c10::DeviceTypeName(device))
      activities.insert(activity);
  }
  return activities;
}

profiler::ProfilerConfig trace_config(bool gives_ranges) {
  return profiler::ProfilerConfig(gives_ranges ? profiler::ProfilerState::NVTX
                                               : profiler::ProfilerState::KINETO);
}

}  // namespace

std::string metrics_line(const MetricsRow& row) {
  nlohmann::ordered_json json{{"step", row.step}, {"epoch", row.epoch}, {"loss", row.loss}};
  if (row.val_loss) json["val_loss"] = *row.val_loss;
  if (row.accuracy) json["accuracy"] = *row.accuracy;
  if (row.eval_batches) json["eval_batches"] = *row.eval_batches;
  json["lr"] = row.lr;
  if (row.loss_scale) json["loss_scale"] = *row.loss_scale;
  json["samples_per_second"] = row.samples_per_second;
  if (row.tokens_per_second) json["tokens_per_second"] = *row.tokens_per_second;
  json["resident_bytes"] = row.resident_bytes;
  json["model_bytes"] = row.model_bytes;
  if (row.device_memory) {
    json["device_allocated_bytes"] = row.device_memory->allocated;
    json["device_reserved_bytes"] = row.device_memory->reserved;
  }
  if (row.mfu) json["mfu"] = *row.mfu;
  json["exposed_seconds"] = row.exposed_seconds;
  json["forward_seconds"] = row.forward_seconds;
  json["backward_seconds"] = row.backward_seconds;
  json["update_seconds"] = row.update_seconds;
  json["seconds"] = row.seconds;
  if (row.sample) json["sample"] = *row.sample;
  // A sample may not be valid UTF-8.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

MetricsFile::MetricsFile(std::filesystem::path path, std::int64_t resumed_at)
    : path_(std::move(path)) {
  if (resumed_at <= 0 || !sys::exists(path_)) {
    sys::AtomicFile::write(path_, "");
    return;
  }
  const std::size_t size = size_until(path_, resumed_at);
  // If this process may not change the file, it may still replace it.
  if (::truncate(path_.c_str(), static_cast<off_t>(size)) != 0)
    sys::AtomicFile::write(path_, sys::read_file(path_).substr(0, size));
}

void MetricsFile::append(const MetricsRow& row) {
  std::string line = metrics_line(row) + "\n";
  constexpr int how = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK;
  sys::FileDescriptor file(::open(path_.c_str(), how, 0666));
  if (!file) throw SystemError("cannot open " + path_.string(), errno);
  const sys::ScopedSignalBlock quiet(SIGXFSZ);
  const off_t before = ::lseek(file.get(), 0, SEEK_END);
  ssize_t written = ::write(file.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return;
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0 && before >= 0) {
    [[maybe_unused]] const int cut = ::ftruncate(file.get(), before);  // removes a partial row
  }
  throw SystemError("cannot append to " + path_.string(), error);
}

void Pace::start(double before) {
  before_ = before;
  started_ = read_at_ = Clock::now();
}

void Pace::add_step(std::int64_t samples, const StepTiming& seconds) {
  samples_ += samples;
  seconds_.forward += seconds.forward;
  seconds_.backward += seconds.backward;
  seconds_.exposed += seconds.exposed;
  seconds_.update += seconds.update;
  ++steps_;
}

// Takes the maximum over ranks of each number.
void Pace::read(Group& world, std::int64_t model_bytes, c10::Device device) {
  constexpr double none = -1;
  const std::optional<DeviceMemory> memory = peak_memory(device);
  row_.samples_per_second = static_cast<double>(samples_) / std::max(1e-9, seconds_since(read_at_));
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, steps_));
  at::Tensor most =
      at::tensor({static_cast<double>(resident_bytes()), static_cast<double>(model_bytes),
                  seconds_.exposed / steps, seconds_.forward / steps, seconds_.backward / steps,
                  seconds_.update / steps, memory ? static_cast<double>(memory->allocated) : none,
                  memory ? static_cast<double>(memory->reserved) : none},
                 at::kDouble);
  world.all_reduce(most, Op::max, {.tag = "usage"}).wait();
  const double* values = most.const_data_ptr<double>();
  row_.resident_bytes = static_cast<std::int64_t>(values[0]);
  row_.model_bytes = static_cast<std::int64_t>(values[1]);
  row_.exposed_seconds = values[2];
  row_.forward_seconds = values[3];
  row_.backward_seconds = values[4];
  row_.update_seconds = values[5];
  if (values[6] != none)
    row_.device_memory = {.allocated = static_cast<std::int64_t>(values[6]),
                          .reserved = static_cast<std::int64_t>(values[7])};
  samples_ = steps_ = 0;
  seconds_ = {};
  read_at_ = Clock::now();
}

MetricsRow Pace::row() const {
  MetricsRow row = row_;
  row.seconds = seconds();
  return row;
}

// The value is cached: in a run that reports every step, reading it each time would cost more than
// a small step.
std::int64_t Pace::resident_bytes() {
  if (resident_bytes_ == 0 || seconds_since(resident_read_at_) > 1) {
    resident_bytes_ = sys::proportional_bytes();
    resident_read_at_ = Clock::now();
  }
  return resident_bytes_;
}

double Pace::seconds() const { return before_ + seconds_since(started_); }

std::filesystem::path trace_file(const std::filesystem::path& file, int rank, int ranks) {
  if (ranks == 1) return file;
  std::filesystem::path own = file;
  own.replace_extension(formatted(".rank{}{}", rank, file.extension().string()));
  return own;
}

Trace::Trace(const Options& options, const Group& world, c10::DeviceType device)
    : gives_ranges_(options.trace == trace_as_ranges),
      device_(device),
      steps_(options.trace_steps) {
  check_input(!gives_ranges_ || torch::profiler::impl::cudaStubs()->enabled(),
              "--trace {}: this LibTorch has no CUDA", trace_as_ranges);
  if (!options.trace.empty() && !gives_ranges_)
    file_ = trace_file(options.trace, world.rank(), world.size());
}

Trace::~Trace() {
  if (is_recording_) (void)profiler::disableProfiler();
}

void Trace::start() {
  const std::set<ActivityType> activities = activities_of(device_);
  profiler::prepareProfiler(trace_config(gives_ranges_), activities);
  profiler::enableProfiler(trace_config(gives_ranges_), activities);
  is_recording_ = true;
}

void Trace::begin_step() {
  if ((gives_ranges_ || !file_.empty()) && step_++ == left_out_of_traces) start();
}

bool Trace::is_complete() const { return is_recording_ && step_ == left_out_of_traces + steps_; }

// The profiler ignores write errors, so the old file is removed first.
void Trace::write() {
  if (!is_recording_) return;
  is_recording_ = false;
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  if (gives_ranges_) return;
  std::error_code error;
  std::filesystem::remove(file_, error);
  result->save(file_.string());
  const bool is_there = std::filesystem::file_size(file_, error) > 0 && !error;
  if (!is_there)
    throw SystemError("writing the trace " + file_.string(), error ? error.value() : EIO);
}

}  // namespace lockstep::train
