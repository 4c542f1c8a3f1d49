#include "launch/error_file.h"

#include "base/format.h"
#include "base/text.h"
#include "sys/bounded_json.h"
#include "sys/file_descriptor.h"

#include <fcntl.h>
#include <lockstep/base/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace lockstep::launch {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t most_bytes = 1 << 20;
constexpr sys::JsonLimits limits{.depth = 8, .members = 1000, .values = 10'000};
constexpr std::size_t most_lines = 40;

// Empty where there is none. A FIFO of that name must not hold us up.
std::string content_of(const std::string& file) {
  const sys::FileDescriptor open(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found = {};
  if (!open || ::fstat(open.get(), &found) != 0 || !S_ISREG(found.st_mode)) return "";
  std::string content(most_bytes + 1, '\0');
  const ssize_t size = ::pread(open.get(), content.data(), content.size(), 0);
  if (size <= 0 || static_cast<std::size_t>(size) > most_bytes) return "";
  content.resize(static_cast<std::size_t>(size));
  return content;
}

// Null where it is no error file.
json parsed(std::string_view text) {
  try {
    json error = sys::parse_json(text, limits);
    if (error.is_object() && error.contains("message")) return error;
  } catch (const std::exception&) {
    return nullptr;
  }
  return nullptr;
}

std::string text_at(const json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (lines.size() > most_lines) lines.erase(lines.begin(), lines.end() - most_lines);
  return lines;
}

// As Python's subprocess counts: a signal is negative.
int python_code(const RankEnd& end) {
  const bool by_signal = end.exit_code > 128 && end.how.starts_with("killed");
  return by_signal ? 128 - end.exit_code : end.exit_code;
}

json own_error(const WorkerFailure& failure, std::int64_t now) {
  const RankEnd& end = failure.end;
  const std::string message = formatted("rank {} (host {}, pid {}) in round {}: {}", end.rank,
                                        failure.host, end.pid, failure.round, end.how);
  return {{"message",
           {{"message", message},
            {"extraInfo",
             {{"py_callstack", join(failure.last_lines, "\n")},
              {"timestamp", std::to_string(now)},
              {"rank", end.rank},
              {"round", failure.round},
              {"host", failure.host},
              {"pid", end.pid},
              {"exitcode", python_code(end)}}}}}};
}

std::string write(const std::string& file, const std::string& text) {
  std::error_code ignored;
  fs::remove(file, ignored);  // also what is no file
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  return stream ? "" : formatted("cannot write the error file {}: {}", file, std::strerror(errno));
}

}  // namespace

ErrorFolder::ErrorFolder(const std::string& log_folder, const std::string& run_id)
    : temporary_(log_folder.empty()) {
  std::error_code ignored, error;
  const fs::path above =
      fs::absolute(temporary_ ? fs::temp_directory_path(ignored) : fs::path(log_folder), ignored);
  if (above.empty()) return;
  const fs::path folder = above / (temporary_ ? run_id + "-errors" : "errors");
  fs::create_directories(folder, error);
  if (temporary_ && error) return;
  if (error)
    throw SystemError("making the folder of error files " + folder.string(), error.value());
  if (temporary_) fs::permissions(folder, fs::perms::owner_all, ignored);
  path_ = folder.string();
}

ErrorFolder::~ErrorFolder() {
  std::error_code ignored;
  if (temporary_ && !path_.empty()) fs::remove_all(path_, ignored);
}

std::string ErrorFolder::file(int round, int rank) const {
  if (path_.empty()) return "";
  const fs::path file = fs::path(path_) / formatted("round-{}-rank-{}.json", round, rank);
  std::error_code ignored;
  fs::remove(file, ignored);
  return file.string();
}

std::vector<std::string> recorded_error(const std::string& file) {
  const json error = parsed(content_of(file));
  if (error.is_null()) return {};
  const json& message = error["message"];
  if (message.is_string()) return lines_of(message.get<std::string>());
  const auto extra = message.is_object() ? message.find("extraInfo") : message.end();
  std::string text = extra != message.end() ? text_at(*extra, "py_callstack") : "";
  if (text.empty()) text = text_at(message, "message");
  return lines_of(text);
}

std::string error_text(const WorkerFailure& failure, std::string_view recorded, std::int64_t now) {
  json error = parsed(recorded);
  if (error.is_null()) error = own_error(failure, now);
  json& message = error["message"];
  if (message.is_object() && failure.end.exit_code != 0)
    message["errorCode"] = python_code(failure.end);
  return error.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string write_error_files(const WorkerFailure& failure, const std::string& file, bool keep,
                              const std::string& copy) {
  const std::string text = error_text(failure, content_of(file), std::time(nullptr));
  std::string problem;
  if (keep && !file.empty()) problem = write(file, text);
  if (!copy.empty() && problem.empty()) problem = write(copy, text);
  return problem;
}

}  // namespace lockstep::launch
