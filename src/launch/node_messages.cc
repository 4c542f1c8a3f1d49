#include "launch/node_messages.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

namespace lockstep::launch {

namespace {

// Reads a text line by line.
class MessageLines {
 public:
  MessageLines(const char* what, std::string_view text) : what_(what), left_(text) {
    check_input(text.size() <= most_text_bytes,
                "{} of another agent: expected at most {} bytes, found {}", what, most_text_bytes,
                text.size());
  }

  [[nodiscard]] bool at_end() const { return left_.empty(); }

  std::string_view take() {
    const std::size_t end = left_.find('\n');
    const std::string_view line = left_.substr(0, end);
    if (end == std::string_view::npos || line.size() > most_line_bytes ||
        escaped_line(line) != line)
      fail("a line of text", line);
    left_.remove_prefix(end + 1);
    return line;
  }

  // Returns the rest of a line that begins with `word` and a blank.
  std::string_view take(std::string_view word) {
    const std::string_view line = take();
    if (!line.starts_with(word) || line.substr(word.size(), 1) != " ") fail(word, line);
    return line.substr(word.size() + 1);
  }

  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    throw BadInput(formatted("{} of another agent: expected {}, found '{}'", what_, expected,
                             escaped(found, 60)));
  }

 private:
  const char* what_;
  std::string_view left_;
};

struct Range {
  std::int64_t least, most;
};

// Reads numbers that are separated by one blank; `rest` receives the remainder of the line.
template <std::size_t count>
std::array<std::int64_t, count> take_numbers(const MessageLines& lines, std::string_view& rest,
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
std::array<std::int64_t, count> only_numbers(const MessageLines& lines, std::string_view text,
                                             const std::array<Range, count>& ranges) {
  const auto numbers = take_numbers(lines, text, ranges);
  if (!text.empty()) lines.fail("the end of a line", text);
  return numbers;
}

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
  if (node < 0 && rank >= 0) lines.fail("no rank, because there is no node", rest);
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

std::string to_text(const NodeClaim& claim) {
  return formatted("{} {} {} {}\n", claim.pid, claim.mark, claim.address, single_line(claim.host));
}

NodeClaim parse_node_claim(std::string_view text) {
  MessageLines lines("the claim", text);
  std::string_view rest = lines.take();
  const auto take_word = [&] {
    const std::size_t blank = rest.find(' ');
    if (blank == 0 || blank == std::string_view::npos) lines.fail("a word and a blank", rest);
    const std::string word(rest.substr(0, blank));
    rest.remove_prefix(blank + 1);
    return word;
  };
  NodeClaim claim;
  const auto numbers = take_numbers<1>(lines, rest, {{{0, std::numeric_limits<int>::max()}}});
  claim.pid = static_cast<int>(numbers[0]);
  claim.mark = take_word();
  claim.address = take_word();
  claim.host = rest;
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return claim;
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
      single_line(run_result.at), single_line(run_result.how), single_line(run_result.log_file));
  const std::size_t first =
      run_result.last_lines.size() - std::min(run_result.last_lines.size(), most_last_lines);
  for (std::size_t i = first; i < run_result.last_lines.size(); ++i)
    text += "| " + single_line(run_result.last_lines[i]) + "\n";
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

namespace {

constexpr std::string_view join_request_version = "lockstep-join 1",
                           plan_version = "lockstep-plan 1";
constexpr Range counts{0, most_rounds};
constexpr Range worker_counts{1, most_ranks_of_a_node};
constexpr Range ports{1, 65535};

// Returns the offers of the nodes of the last round, in the order of that round; std::nullopt for a
// node that has left.
std::vector<std::optional<JoinRequest>> old_places(const RoundPlan* last,
                                                   std::vector<JoinRequest>& requests) {
  std::vector<std::optional<JoinRequest>> places;
  if (last == nullptr) return places;
  for (const RoundPlan::Node& node : last->nodes) {
    const auto same = std::ranges::find(requests, node.node, &JoinRequest::node);
    if (same == requests.end()) {
      places.emplace_back();
    } else {
      places.emplace_back(std::move(*same));
      requests.erase(same);
    }
  }
  return places;
}

// Puts new nodes into free places with the same number of workers.
void fill(std::vector<std::optional<JoinRequest>>& places, const RoundPlan& last,
          std::vector<JoinRequest>& requests) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i]) continue;
    const auto fits =
        std::ranges::find(requests, last.nodes[i].workers.size(),
                          [](const JoinRequest& request) { return request.workers.size(); });
    if (fits == requests.end()) continue;
    places[i] = std::move(*fits);
    requests.erase(fits);
  }
}

RoundPlan::Node to_node(const JoinRequest& request) {
  RoundPlan::Node node{.node = request.node, .host = request.host, .workers = {}};
  for (const JoinRequest::Worker& worker : request.workers) node.workers.push_back(worker.name);
  return node;
}

// Checks a name of the form "NODE.NUMBER".
std::string checked_worker(const MessageLines& lines, std::string_view name) {
  const std::size_t dot = name.find('.');
  const auto node = parse_integer(name.substr(0, dot));
  const auto number =
      parse_integer(dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1));
  if (!node || !number || *node < 0 || *number < 0) lines.fail("a worker's name", name);
  return std::string(name);
}

}  // namespace

int RoundPlan::ranks() const { return first_rank(static_cast<int>(nodes.size())); }

int RoundPlan::group_rank(int node) const {
  const auto found = std::ranges::find(nodes, node, &Node::node);
  return found == nodes.end() ? -1 : static_cast<int>(found - nodes.begin());
}

int RoundPlan::first_rank(int group_rank) const {
  std::size_t rank = 0;
  for (int before = 0; before < group_rank; ++before) rank += nodes[before].workers.size();
  return static_cast<int>(rank);
}

RoundPlan plan_round(const RoundPlan* last, std::vector<JoinRequest> requests) {
  check(!requests.empty(), "planning a round: expected a node, found none");
  RoundPlan plan;
  if (last != nullptr) {
    const bool failed = std::ranges::any_of(requests, &JoinRequest::failed);
    plan.round = last->round + 1;
    plan.restarts = last->restarts + (failed ? 1 : 0);
  }
  std::ranges::sort(requests, {}, &JoinRequest::node);
  auto places = old_places(last, requests);
  if (last != nullptr) fill(places, *last, requests);
  for (JoinRequest& request : requests) places.emplace_back(std::move(request));
  std::erase_if(places, [](const auto& place) { return !place; });
  plan.master_address = places.front()->address;
  plan.master_port = places.front()->port;
  for (const auto& place : places) plan.nodes.push_back(to_node(*place));
  return plan;
}

std::string workers_text(const RoundPlan& plan) {
  std::string text;
  int rank = 0;
  for (std::size_t group = 0; group < plan.nodes.size(); ++group) {
    const RoundPlan::Node& node = plan.nodes[group];
    for (std::size_t local = 0; local < node.workers.size(); ++local)
      text += formatted("{} {} {} {} {} {}\n", rank++, node.workers[local], group, local,
                        node.workers.size(), single_line(node.host));
  }
  return text;
}

std::string to_text(const JoinRequest& request) {
  std::string text = formatted("{}\nnode {} {}\naddress {} {}\nfailed {}\n", join_request_version,
                               request.node, single_line(request.host), request.port,
                               single_line(request.address), request.failed ? 1 : 0);
  for (const JoinRequest::Worker& worker : request.workers)
    text += formatted("worker {} {}\n", worker.name, worker.survives ? "kept" : "new");
  return text;
}

JoinRequest parse_join_request(std::string_view text) {
  MessageLines lines("the join request", text);
  if (const auto line = lines.take(); line != join_request_version)
    lines.fail(join_request_version, line);
  JoinRequest request;
  std::string_view node = lines.take("node");
  request.node = static_cast<int>(take_numbers<1>(lines, node, {node_numbers})[0]);
  request.host = node;
  std::string_view address = lines.take("address");
  request.port = static_cast<int>(take_numbers<1>(lines, address, {ports})[0]);
  request.address = address;
  request.failed = only_numbers<1>(lines, lines.take("failed"), {{{0, 1}}})[0] == 1;
  while (!lines.at_end() && request.workers.size() < most_ranks_of_a_node) {
    const std::string_view worker = lines.take("worker");
    const std::size_t blank = worker.find(' ');
    const std::string_view state =
        blank == std::string_view::npos ? std::string_view() : worker.substr(blank + 1);
    if (state != "kept" && state != "new") lines.fail("kept or new", worker);
    request.workers.push_back({checked_worker(lines, worker.substr(0, blank)), state == "kept"});
  }
  if (request.workers.empty()) lines.fail("a worker", "");
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return request;
}

std::string to_text(const RoundPlan& plan) {
  std::string text = formatted("{}\nround {} {}\nmaster {} {}\n", plan_version, plan.round,
                               plan.restarts, plan.master_port, single_line(plan.master_address));
  for (const RoundPlan::Node& node : plan.nodes) {
    text += formatted("node {} {} {}\n", node.node, node.workers.size(), single_line(node.host));
    for (const std::string& worker : node.workers) text += formatted("worker {}\n", worker);
  }
  return text;
}

RoundPlan parse_round_plan(std::string_view text) {
  MessageLines lines("the plan of a round", text);
  if (const auto line = lines.take(); line != plan_version) lines.fail(plan_version, line);
  RoundPlan plan;
  const auto [round, restarts] = only_numbers<2>(lines, lines.take("round"), {counts, counts});
  plan.round = static_cast<int>(round);
  plan.restarts = static_cast<int>(restarts);
  std::string_view master = lines.take("master");
  plan.master_port = static_cast<int>(take_numbers<1>(lines, master, {ports})[0]);
  plan.master_address = master;
  while (!lines.at_end() && plan.nodes.size() < most_nodes) {
    std::string_view rest = lines.take("node");
    const auto [node, workers] = take_numbers<2>(lines, rest, {node_numbers, worker_counts});
    plan.nodes.push_back({static_cast<int>(node), std::string(rest), {}});
    for (std::int64_t local = 0; local < workers; ++local)
      plan.nodes.back().workers.push_back(checked_worker(lines, lines.take("worker")));
  }
  if (plan.nodes.empty()) lines.fail("a node", "");
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return plan;
}

}  // namespace lockstep::launch
