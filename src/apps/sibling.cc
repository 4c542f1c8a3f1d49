#include "apps/sibling.h"

#include "base/format.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace lockstep::apps {

namespace {

constexpr std::string_view prefix = "lockstep-";

std::filesystem::path own_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

}  // namespace

std::vector<std::string> sibling_names() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(own_folder(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && ::access(entry.path().c_str(), X_OK) == 0)
      names.push_back(name.substr(prefix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

int become_sibling(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string file = (own_folder() / (std::string(prefix) + name)).string();
  if (name.find('/') != std::string::npos || ::access(file.c_str(), F_OK) != 0)
    return no_such_sibling;
  std::vector<char*> argv{const_cast<char*>(file.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(file.c_str(), argv.data());
  print_to(stderr, "lockstep: cannot execute {}: {}\n", file, std::strerror(errno));
  return 126;
}

}  // namespace lockstep::apps
