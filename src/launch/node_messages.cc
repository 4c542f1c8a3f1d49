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

constexpr std::string_view hello_version = "lockstep-hello 1",
                           node_list_version = "lockstep-node-list 1";
constexpr std::size_t most_last_lines = 100;
constexpr std::int64_t most_int = std::numeric_limits<int>::max();

constexpr Range node_numbers{0, most_node_number};
constexpr Range ranks_of_a_node{1, most_ranks_of_a_node};

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

int NodeList::first_rank(int node) const {
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
  MessageLines lines("the hello", text);
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

std::string to_text(const NodeList& node_list) {
  if (!node_list.refused.empty()) return "refused " + tidy(node_list.refused) + "\n";
  std::string text =
      formatted("{}\nrun {}\nmaster {} {}\n", node_list_version, tidy(node_list.run_id),
                node_list.master_port, tidy(node_list.master_address));
  for (const NodeList::Node& node : node_list.nodes)
    text += formatted("node {} {}\n", node.ranks, tidy(node.host));
  return text;
}

NodeList parse_node_list(std::string_view text) {
  MessageLines lines("the list of nodes", text);
  NodeList node_list;
  const std::string_view first = lines.take();
  if (first.starts_with("refused ")) {
    node_list.refused = first.substr(8);
  } else if (first != node_list_version) {
    lines.fail(node_list_version, first);
  } else {
    node_list.run_id = lines.take("run");
    std::string_view master = lines.take("master");
    node_list.master_port = static_cast<int>(take_numbers<1>(lines, master, {{{1, 65535}}})[0]);
    node_list.master_address = master;
    while (!lines.at_end() && node_list.nodes.size() < most_nodes) {
      std::string_view node = lines.take("node");
      const auto ranks = take_numbers<1>(lines, node, {ranks_of_a_node})[0];
      node_list.nodes.push_back({static_cast<int>(ranks), std::string(node)});
    }
    if (node_list.nodes.empty()) lines.fail("a node", "");
  }
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return node_list;
}

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
