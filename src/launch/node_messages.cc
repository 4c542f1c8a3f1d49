#include "launch/node_messages.h"

#include "base/format.h"
#include "launch/message_lines.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace lockstep::launch {

namespace {

constexpr std::size_t most_last_lines = 100;
constexpr std::int64_t most_int = std::numeric_limits<int>::max();

constexpr Range node_numbers{0, most_node_number};

RunResult parse_failure(MessageLines& lines, std::string_view rest) {
  constexpr std::array<Range, 5> ranges{{{0, 255},
                                         {-1, most_node_number},
                                         {-1, most_int},
                                         {0, most_int},
                                         {0, std::numeric_limits<std::int64_t>::max()}}};
  const auto [code, node, rank, pid, after] = only_numbers(lines, rest, ranges);
  if (node < 0 && rank >= 0) lines.fail("no rank where there is no node", rest);
  RunResult run_result{.kind = RunResult::Kind::failed,
                       .node = static_cast<int>(node),
                       .exit_code = static_cast<int>(code),
                       .rank = static_cast<int>(rank),
                       .pid = static_cast<int>(pid),
                       .after = Duration(after),
                       .at = std::string(lines.take("at")),
                       .how = std::string(lines.take("how")),
                       .log_file = std::string(lines.take("log"))};
  while (!lines.at_end() && run_result.last_lines.size() < most_last_lines)
    run_result.last_lines.emplace_back(lines.take("|"));
  return run_result;
}

}  // namespace

std::string to_text(const RunResult& run_result) {
  switch (run_result.kind) {
    case RunResult::Kind::done:
      return "done\n";
    case RunResult::Kind::stopped:
      return formatted("stopped {} {}\n", run_result.signal, run_result.node);
    case RunResult::Kind::failed:
      break;
  }
  std::string text = formatted(
      "failed {} {} {} {} {}\nat {}\nhow {}\nlog {}\n", run_result.exit_code, run_result.node,
      run_result.rank, run_result.pid, std::max<std::int64_t>(0, run_result.after.count()),
      tidy(run_result.at), tidy(run_result.how), tidy(run_result.log_file));
  const std::size_t first =
      run_result.last_lines.size() - std::min(run_result.last_lines.size(), most_last_lines);
  for (std::size_t i = first; i < run_result.last_lines.size(); ++i)
    text += "| " + tidy(run_result.last_lines[i]) + "\n";
  return text;
}

RunResult parse_run_result(std::string_view text) {
  MessageLines lines("the result of the run", text);
  const std::string_view first = lines.take();
  RunResult run_result;
  if (first.starts_with("stopped ")) {
    const auto [signal, node] = only_numbers<2>(lines, first.substr(8), {{{1, 64}, node_numbers}});
    run_result.kind = RunResult::Kind::stopped;
    run_result.signal = static_cast<int>(signal);
    run_result.node = static_cast<int>(node);
  } else if (first.starts_with("failed ")) {
    run_result = parse_failure(lines, first.substr(7));
  } else if (first != "done") {
    lines.fail("done, stopped or failed", first);
  }
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return run_result;
}

}  // namespace lockstep::launch
