#include "launch/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <vector>

namespace lockstep::launch {

namespace {

enum class Finding { absent, folder, not_executable, executable };

Finding look_at(const std::string& file) {
  struct stat found = {};
  if (::stat(file.c_str(), &found) != 0) return Finding::absent;
  if (S_ISDIR(found.st_mode)) return Finding::folder;
  return ::access(file.c_str(), X_OK) == 0 ? Finding::executable : Finding::not_executable;
}

std::vector<std::string> candidates(const std::string& name, std::string_view path) {
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> files;
  while (!path.empty()) {
    const std::size_t end = path.find(':');
    const std::string folder(path.substr(0, end));
    files.push_back((folder.empty() ? "." : folder) + "/" + name);
    path.remove_prefix(end == std::string_view::npos ? path.size() : end + 1);
  }
  files.push_back("./" + name);
  return files;
}

}  // namespace

FoundProgram find_program(const std::string& name, std::string_view path) {
  FoundProgram nearest_miss{"", "program '" + name + "' was not found", 127};
  if (name.find('/') == std::string::npos)
    nearest_miss.problem += " in PATH or in the current folder";
  for (const std::string& file : candidates(name, path)) {
    const Finding finding = look_at(file);
    if (finding == Finding::executable) return {file, "", 0};
    if (nearest_miss.exit_code == 126 || finding == Finding::absent) continue;
    if (finding == Finding::folder) {
      if (name.find('/') != std::string::npos)
        nearest_miss = {"", "program '" + file + "' is a folder", 126};
    } else {
      nearest_miss = {
          "", "program '" + file + "' is not executable: chmod +x, or start it by its interpreter",
          126};
    }
  }
  return nearest_miss;
}

}  // namespace lockstep::launch
