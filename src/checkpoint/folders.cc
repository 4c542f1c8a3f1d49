#include "checkpoint/folders.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <span>
#include <string_view>
#include <system_error>

#include <sys/random.h>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

void remove_quietly(const fs::path& folder) {
  std::error_code ignored;  // an old folder that stays harms nobody
  fs::remove_all(folder, ignored);
}

}  // namespace

std::int64_t step_of(const fs::path& folder) {
  std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  if (!name.starts_with(folder_prefix)) return -1;
  std::string digits = name.substr(std::string_view(folder_prefix).size());
  bool good = digits.size() >= 8 && digits.size() <= 18 &&
              std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c); });
  return good ? std::stoll(digits) : -1;
}

std::string random_word() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof(random), 0) != sizeof(random))
    throw SystemError("getting random bytes", errno);
  return formatted("{:016x}", random);
}

std::string partial_name(const std::string& name, const std::string& random) {
  return formatted(".{}.{}.partial", name, random);
}

void remove_partial(const fs::path& folder, const std::string& prefix) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with("." + prefix) && name.ends_with(".partial")) remove_quietly(entry.path());
  }
}

void remove_all_but(const fs::path& out, std::int64_t keep) {
  std::vector<fs::path> folders = list_checkpoints(out);
  if (keep == 0 || static_cast<std::int64_t>(folders.size()) <= keep) return;
  for (const fs::path& folder :
       std::span(folders).first(folders.size() - static_cast<std::size_t>(keep)))
    remove_quietly(folder);
}

std::string checkpoint_name(std::int64_t step) { return formatted("{}{:08}", folder_prefix, step); }

std::vector<fs::path> list_checkpoints(const fs::path& out) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(out, error))
    if (step_of(entry.path()) >= 0) folders.push_back(entry.path());
  std::ranges::sort(folders, {}, step_of);
  return folders;
}

std::optional<fs::path> latest_checkpoint(const fs::path& out) {
  std::vector<fs::path> folders = list_checkpoints(out);
  return folders.empty() ? std::nullopt : std::optional(folders.back());
}

}  // namespace lockstep::checkpoint
