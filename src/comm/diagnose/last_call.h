// What is said of the last calls of ranks that others wait for.
#pragma once

#include <lockstep/base/format.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// "its last call was all_reduce #3 (...)"; an empty `call` is none: "it has made no call yet".
[[nodiscard]] inline std::string words_of_last_call(std::string_view call) {
  return call.empty() ? "it has made no call yet" : formatted("its last call was {}", call);
}

// The same of each rank, separated by "; ", and with its number where they are several.
[[nodiscard]] inline std::string words_of_last_calls(
    std::span<const int> ranks, const std::function<std::string(int rank)>& call_of) {
  if (ranks.size() == 1) return words_of_last_call(call_of(ranks.front()));
  std::string text;
  for (int rank : ranks) {
    const auto call = call_of(rank);
    if (!text.empty()) text += "; ";
    text += call.empty() ? formatted("rank {} has made no call yet", rank)
                         : formatted("rank {}'s last call was {}", rank, call);
  }
  return text;
}

}  // namespace lockstep
