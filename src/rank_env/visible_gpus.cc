#include "rank_env/visible_gpus.h"

#include "base/check.h"
#include "base/text.h"

#include <span>
#include <utility>

namespace lockstep::rank_env {
namespace {

std::string without_spaces(std::string_view text) {
  std::string result(text);
  std::erase(result, ' ');
  return result;
}

}  // namespace

std::vector<std::string> listed_gpus(std::string_view text) {
  std::vector<std::string> entries;
  for_each_part(text, ',', [&](std::string_view part) {
    if (auto entry = without_spaces(part); !entry.empty()) entries.push_back(std::move(entry));
  });
  return entries;
}

std::string gpus_of_rank(int local_rank, int local_ranks, int per_rank,
                         const std::optional<std::string>& visible) {
  const auto needed = static_cast<std::size_t>(local_ranks) * static_cast<std::size_t>(per_rank);
  std::vector<std::string> all;
  if (visible) {
    all = listed_gpus(*visible);
  } else {
    for (std::size_t number = 0; number < needed; ++number) all.push_back(std::to_string(number));
  }
  check_input(
      all.size() >= needed,
      "--gpus-per-rank {} with --ranks {}: expected CUDA_VISIBLE_DEVICES to name {} GPUs, found {}",
      per_rank, local_ranks, needed, all.size());
  const auto begin = static_cast<std::size_t>(local_rank) * static_cast<std::size_t>(per_rank);
  return join(std::span(all).subspan(begin, per_rank), ",");
}

}  // namespace lockstep::rank_env
