// The files in the host's shared memory.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

namespace lockstep::test {

// Returns the names in /dev/shm, except those of Open MPI and MPICH, because other tests run MPI
// programs at the same time.
[[nodiscard]] inline std::set<std::string> shared_files() {
  constexpr std::array<std::string_view, 4> of_others = {"vader_segment.", "sm_segment.",
                                                         "open_mpi.", "mpich_shar_tmp"};
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    auto name = file.path().filename().string();
    if (std::ranges::none_of(of_others, [&](auto begin) { return name.starts_with(begin); }))
      names.insert(name);
  }
  return names;
}

}  // namespace lockstep::test
