#include <lockstep/train/metrics.h>

#include <lockstep/base/error.h>

#include "sys/error_instead_of_signal.h"
#include "sys/file_descriptor.h"
#include "sys/files.h"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <fstream>

namespace lockstep::train {
namespace {

bool is_row_until(const std::string& line, std::int64_t step) {
  auto row = nlohmann::json::parse(line, nullptr, false);
  return row.is_object() && row.contains("step") && row["step"].is_number_integer() &&
         row["step"] <= step;
}

std::string rows_until(const std::filesystem::path& path, std::int64_t step) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);)
    if (is_row_until(line, step)) kept += line + "\n";
  return kept;
}

}  // namespace

std::string metrics_line(const MetricsRow& row) {
  nlohmann::ordered_json json{{"step", row.step}, {"epoch", row.epoch}, {"loss", row.loss}};
  if (row.val_loss) json["val_loss"] = *row.val_loss;
  if (row.accuracy) json["accuracy"] = *row.accuracy;
  json["lr"] = row.lr;
  json["samples_per_second"] = row.samples_per_second;
  json["resident_bytes"] = row.resident_bytes;
  json["model_bytes"] = row.model_bytes;
  json["exposed_seconds"] = row.exposed_seconds;
  json["seconds"] = row.seconds;
  return json.dump();
}

MetricsFile::MetricsFile(std::filesystem::path path, std::int64_t resumed_at)
    : path_(std::move(path)) {
  sys::AtomicFile::write(path_, resumed_at > 0 ? rows_until(path_, resumed_at) : "");
}

void MetricsFile::append(const MetricsRow& row) {
  std::string line = metrics_line(row) + "\n";
  sys::FileDescriptor file(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!file) throw SystemError("cannot open " + path_.string(), errno);
  const sys::ErrorInsteadOfSignal quiet(SIGXFSZ);
  ssize_t written = ::write(file.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()))
    throw SystemError("cannot append to " + path_.string(), written < 0 ? errno : ENOSPC);
}

}  // namespace lockstep::train
