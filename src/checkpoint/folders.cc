#include "checkpoint/folders.h"

#include "base/check.h"
#include "base/escaped.h"
#include "sys/files.h"
#include "sys/random_bytes.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <span>
#include <system_error>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view partial_end = ".partial";
constexpr std::size_t random_digits = 16;

void remove_quietly(const fs::path& folder) {
  std::error_code ignored;  // leftover files do no harm
  fs::remove_all(folder, ignored);
}

bool is_older(const fs::path& path, std::chrono::hours least_age) {
  std::error_code error;
  const auto changed = fs::last_write_time(path, error);
  return least_age.count() == 0 ||
         (!error && fs::file_time_type::clock::now() - changed > least_age);
}

// Returns all paths with the name of a checkpoint, oldest first.
std::vector<fs::path> checkpoint_names_in(const fs::path& out) {
  std::error_code error;
  if (fs::status(out, error).type() == fs::file_type::not_found && error.value() != ENOTDIR)
    return {};
  std::vector<fs::path> found = sys::entries_in(out);
  std::erase_if(found, [](const fs::path& path) { return step_of(path) < 0; });
  std::ranges::sort(found, {}, step_of);
  return found;
}

// For saving: ignores other files with the name of a checkpoint.
std::vector<fs::path> folders_in(const fs::path& out) {
  std::vector<fs::path> found = checkpoint_names_in(out);
  std::erase_if(found, [](const fs::path& path) { return !sys::is_folder(path); });
  return found;
}

std::string first_line(const fs::path& file) {
  std::ifstream text(file);
  std::string line;
  std::getline(text, line);
  return escaped(line, 80);
}

}  // namespace

std::int64_t step_of(const fs::path& folder) {
  std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  if (!name.starts_with(folder_prefix)) return -1;
  std::string digits = name.substr(std::string_view(folder_prefix).size());
  bool is_number = digits.size() >= 8 && digits.size() <= 18 &&
                   std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c); });
  if (!is_number) return -1;
  const std::int64_t step = std::stoll(digits);
  return name == checkpoint_name(step) ? step : -1;  // a step has only one valid name
}

std::string random_word() { return sys::hexadecimal(sys::random_bytes(random_digits / 2)); }

std::string partial_name(const std::string& name, const std::string& random) {
  return formatted(".{}.{}.partial", name, random);
}

std::string named_in_partial(const std::string& partial) {
  constexpr std::size_t behind_name = 1 + random_digits + partial_end.size();
  if (partial.size() < 2 + behind_name || partial.front() != '.' || !partial.ends_with(partial_end))
    return {};
  const std::size_t end = partial.size() - behind_name;
  const std::string random = partial.substr(end + 1, random_digits);
  const bool is_random =
      partial[end] == '.' && random.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_random ? partial.substr(1, end - 1) : std::string();
}

void remove_partial(const fs::path& folder, const std::function<bool(const std::string&)>& is_ours,
                    std::chrono::hours least_age) {
  std::vector<fs::path> left;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = named_in_partial(entry->path().filename().string());
    if (!name.empty() && is_ours(name) && is_older(entry->path(), least_age))
      left.push_back(entry->path());
  }
  std::ranges::for_each(left, remove_quietly);
}

void point_latest(const fs::path& out) {
  if (const std::vector<fs::path> folders = folders_in(out); !folders.empty()) {
    sys::AtomicFile::write(out / latest_file, folders.back().filename().string() + "\n");
    return;
  }
  std::error_code error;
  fs::remove(out / latest_file, error);
  if (error) throw SystemError("removing " + (out / latest_file).string(), error.value());
}

void point_latest_quietly(const fs::path& out) {
  try {
    point_latest(out);
  } catch (const SystemError&) {
    // Loading finds checkpoints by the folders' names, not by this file.
  }
}

void remove_all_but(const fs::path& out, std::int64_t keep) {
  std::vector<fs::path> folders = folders_in(out);
  if (keep == 0 || static_cast<std::int64_t>(folders.size()) <= keep) return;
  for (const fs::path& folder :
       std::span(folders).first(folders.size() - static_cast<std::size_t>(keep))) {
    const fs::path leaving = out / partial_name(folder.filename().string(), random_word());
    std::error_code error;
    fs::rename(folder, leaving, error);
    if (!error) remove_quietly(leaving);
  }
}

std::string checkpoint_name(std::int64_t step) { return formatted("{}{:08}", folder_prefix, step); }

std::vector<fs::path> list_checkpoints(const fs::path& out) {
  std::vector<fs::path> found = checkpoint_names_in(out);
  for (const fs::path& path : found)
    check_input(sys::is_folder(path), "{}: expected the folder of a checkpoint, found {}",
                path.string(), sys::exists(path) ? "a file" : "a broken link");
  return found;
}

std::optional<fs::path> latest_checkpoint(const fs::path& out) {
  std::vector<fs::path> folders = list_checkpoints(out);
  if (!folders.empty()) return folders.back();
  const fs::path latest = out / latest_file;
  check_input(!sys::exists(latest),
              "{}: names '{}', but there is no such checkpoint beside it: restore it, or remove "
              "this file to start from the beginning",
              latest.string(), first_line(latest));
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
