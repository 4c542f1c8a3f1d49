#include <lockstep/layout/name_pattern.h>

#include "base/text.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <set>

namespace lockstep::layout {
namespace {

// '*' matches any characters; neither argument contains a dot.
bool names_part(std::string_view pattern, std::string_view part) {
  if (pattern.empty()) return part.empty();
  if (pattern.front() != '*')
    return !part.empty() && pattern.front() == part.front() &&
           names_part(pattern.substr(1), part.substr(1));
  for (std::size_t taken = 0; taken <= part.size(); ++taken)
    if (names_part(pattern.substr(1), part.substr(taken))) return true;
  return false;
}

}  // namespace

std::vector<std::string_view> paths_of(std::string_view name) {
  std::vector<std::string_view> paths;
  for (std::size_t end = name.size(); end != std::string_view::npos;
       end = end == 0 ? std::string_view::npos : name.rfind('.', end - 1))
    paths.push_back(name.substr(0, end));
  return paths;
}

void check_patterns(std::string_view kind, std::span<const std::string> patterns,
                    std::span<const std::string> names) {
  std::set<std::string_view> paths;
  for (const std::string& name : names)
    for (std::string_view path : paths_of(name)) paths.insert(path);
  for (const std::string& pattern : patterns) {
    auto named = [&](std::string_view path) { return names_path(pattern, path); };
    if (std::ranges::any_of(paths, named)) continue;
    constexpr std::size_t most_paths = 12;
    std::vector<std::string_view> known(paths.begin(), paths.end());
    std::ranges::stable_sort(known, {}, [](auto path) { return std::ranges::count(path, '.'); });
    if (known.size() > most_paths) known.resize(most_paths);
    throw InvalidArgument(unknown_name(kind, pattern, known));
  }
}

bool names_around(std::string_view pattern, std::string_view name) {
  return std::ranges::any_of(paths_of(name),
                             [&](std::string_view path) { return names_path(pattern, path); });
}

bool names_path(std::string_view pattern, std::string_view path) {
  std::size_t end_of_pattern = pattern.find('.');
  std::size_t end_of_path = path.find('.');
  if (!names_part(pattern.substr(0, end_of_pattern), path.substr(0, end_of_path))) return false;
  bool last = end_of_pattern == std::string_view::npos;
  if (last || end_of_path == std::string_view::npos)
    return last && end_of_path == std::string_view::npos;
  return names_path(pattern.substr(end_of_pattern + 1), path.substr(end_of_path + 1));
}

}  // namespace lockstep::layout
