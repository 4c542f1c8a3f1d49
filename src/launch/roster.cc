#include "launch/roster.h"

#include <lockstep/base/check.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>
#include <lockstep/base/visible.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace lockstep::launch {

namespace {

constexpr std::string_view hello_version = "lockstep-hello 1", roster_version = "lockstep-roster 1";
constexpr std::size_t most_last_lines = 100;
constexpr std::int64_t most_int = std::numeric_limits<int>::max();

// What the writers are given, fit for one line.
std::string tidy(std::string_view text) { return visible_line(text, most_line_bytes - 64); }

// Takes one line after the other off the front.
class Lines {
 public:
  Lines(const char* what, std::string_view text) : what_(what), left_(text) {
    check_input(text.size() <= most_text_bytes,
                "{} of another agent: expected at most {} bytes, found {}", what, most_text_bytes,
                text.size());
  }

  [[nodiscard]] bool at_end() const { return left_.empty(); }

  std::string_view take() {
    const std::size_t end = left_.find('\n');
    const std::string_view line = left_.substr(0, end);
    if (end == std::string_view::npos || line.size() > most_line_bytes ||
        visible_line(line) != line)
      fail("a line of text", line);
    left_.remove_prefix(end + 1);
    return line;
  }

  // The rest of a line that begins with that word and a blank.
  std::string_view take(std::string_view word) {
    const std::string_view line = take();
    if (!line.starts_with(word) || line.substr(word.size(), 1) != " ") fail(word, line);
    return line.substr(word.size() + 1);
  }

  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    throw BadInput(formatted("{} of another agent: expected {}, found '{}'", what_, expected,
                             visible(found, 60)));
  }

 private:
  const char* what_;
  std::string_view left_;
};

struct Range {
  std::int64_t least, most;
};

// Numbers with one blank between them, and then what is left of the line.
template <std::size_t count>
std::array<std::int64_t, count> take_numbers(const Lines& lines, std::string_view& rest,
                                             const std::array<Range, count>& ranges) {
  std::array<std::int64_t, count> numbers{};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = rest.find(' ');
    const auto number = parse_integer(rest.substr(0, end));
    if (!number || *number < ranges[i].least || *number > ranges[i].most)
      lines.fail(formatted("a number from {} to {}", ranges[i].least, ranges[i].most), rest);
    numbers[i] = *number;
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return numbers;
}

template <std::size_t count>
std::array<std::int64_t, count> only_numbers(const Lines& lines, std::string_view text,
                                             const std::array<Range, count>& ranges) {
  const auto numbers = take_numbers(lines, text, ranges);
  if (!text.empty()) lines.fail("the end of a line", text);
  return numbers;
}

constexpr Range node_numbers{0, most_nodes - 1};
constexpr Range ranks_of_a_node{1, most_ranks_of_a_node};

Verdict parse_failure(Lines& lines, std::string_view rest) {
  constexpr std::array<Range, 5> ranges{{{0, 255},
                                         {-1, most_nodes - 1},
                                         {-1, most_int},
                                         {0, most_int},
                                         {0, std::numeric_limits<std::int64_t>::max()}}};
  const auto [code, node, rank, pid, after] = only_numbers(lines, rest, ranges);
  if (node < 0 && rank >= 0) lines.fail("no rank where there is no node", rest);
  Verdict verdict{.kind = Verdict::Kind::failed,
                  .node = static_cast<int>(node),
                  .exit_code = static_cast<int>(code),
                  .rank = static_cast<int>(rank),
                  .pid = static_cast<int>(pid),
                  .after = Duration(after),
                  .at = std::string(lines.take("at")),
                  .how = std::string(lines.take("how")),
                  .log_file = std::string(lines.take("log"))};
  while (!lines.at_end() && verdict.last_lines.size() < most_last_lines)
    verdict.last_lines.emplace_back(lines.take("|"));
  return verdict;
}

}  // namespace

int Roster::first_rank(int node) const {
  int rank = 0;
  for (int before = 0; before < node; ++before) rank += nodes[before].ranks;
  return rank;
}

std::string to_text(const Hello& hello) {
  return formatted("{}\nnodes {}\nranks {}\nhost {}\naddress {}\nagent {}\n", hello_version,
                   hello.nodes, hello.ranks, tidy(hello.host), tidy(hello.address),
                   tidy(hello.agent));
}

Hello parse_hello(std::string_view text) {
  Lines lines("the hello", text);
  if (const auto line = lines.take(); line != hello_version) lines.fail(hello_version, line);
  Hello hello;
  hello.nodes =
      static_cast<int>(only_numbers<1>(lines, lines.take("nodes"), {{{1, most_nodes}}})[0]);
  hello.ranks = static_cast<int>(only_numbers<1>(lines, lines.take("ranks"), {ranks_of_a_node})[0]);
  hello.host = lines.take("host");
  hello.address = lines.take("address");
  hello.agent = lines.take("agent");
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return hello;
}

std::string to_text(const Roster& roster) {
  if (!roster.refused.empty()) return "refused " + tidy(roster.refused) + "\n";
  std::string text = formatted("{}\nrun {}\nmaster {} {}\n", roster_version, tidy(roster.run_id),
                               roster.master_port, tidy(roster.master_address));
  for (const Roster::Node& node : roster.nodes)
    text += formatted("node {} {}\n", node.ranks, tidy(node.host));
  return text;
}

Roster parse_roster(std::string_view text) {
  Lines lines("the roster", text);
  Roster roster;
  const std::string_view first = lines.take();
  if (first.starts_with("refused ")) {
    roster.refused = first.substr(8);
  } else if (first != roster_version) {
    lines.fail(roster_version, first);
  } else {
    roster.run_id = lines.take("run");
    std::string_view master = lines.take("master");
    roster.master_port = static_cast<int>(take_numbers<1>(lines, master, {{{1, 65535}}})[0]);
    roster.master_address = master;
    while (!lines.at_end() && roster.nodes.size() < most_nodes) {
      std::string_view node = lines.take("node");
      const auto ranks = take_numbers<1>(lines, node, {ranks_of_a_node})[0];
      roster.nodes.push_back({static_cast<int>(ranks), std::string(node)});
    }
    if (roster.nodes.empty()) lines.fail("a node", "");
  }
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return roster;
}

std::string to_text(const Verdict& verdict) {
  switch (verdict.kind) {
    case Verdict::Kind::done:
      return "done\n";
    case Verdict::Kind::stopped:
      return formatted("stopped {} {}\n", verdict.signal, verdict.node);
    case Verdict::Kind::failed:
      break;
  }
  std::string text =
      formatted("failed {} {} {} {} {}\nat {}\nhow {}\nlog {}\n", verdict.exit_code, verdict.node,
                verdict.rank, verdict.pid, std::max<std::int64_t>(0, verdict.after.count()),
                tidy(verdict.at), tidy(verdict.how), tidy(verdict.log_file));
  const std::size_t first =
      verdict.last_lines.size() - std::min(verdict.last_lines.size(), most_last_lines);
  for (std::size_t i = first; i < verdict.last_lines.size(); ++i)
    text += "| " + tidy(verdict.last_lines[i]) + "\n";
  return text;
}

Verdict parse_verdict(std::string_view text) {
  Lines lines("the verdict", text);
  const std::string_view first = lines.take();
  Verdict verdict;
  if (first.starts_with("stopped ")) {
    const auto [signal, node] = only_numbers<2>(lines, first.substr(8), {{{1, 64}, node_numbers}});
    verdict.kind = Verdict::Kind::stopped;
    verdict.signal = static_cast<int>(signal);
    verdict.node = static_cast<int>(node);
  } else if (first.starts_with("failed ")) {
    verdict = parse_failure(lines, first.substr(7));
  } else if (first != "done") {
    lines.fail("done, stopped or failed", first);
  }
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return verdict;
}

}  // namespace lockstep::launch
