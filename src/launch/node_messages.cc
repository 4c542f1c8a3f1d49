#include "launch/node_messages.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/bounded_json.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

namespace lockstep::launch {

namespace {

using nlohmann::json;

constexpr std::size_t most_last_lines = 100;
constexpr std::int64_t most_int = std::numeric_limits<int>::max();
constexpr sys::JsonLimits message_limits{.depth = 5, .members = 200'000, .values = 1'000'000};

std::int64_t integer_in(const json& from, const char* name, std::int64_t least, std::int64_t most) {
  const std::optional<std::int64_t> number = sys::integer_of(from.at(name));
  check_input(number && *number >= least && *number <= most,
              "{}: expected an integer from {} to {}, found {}", name, least, most,
              from.at(name).dump());
  return *number;
}

int int_in(const json& from, const char* name, std::int64_t least, std::int64_t most) {
  return static_cast<int>(integer_in(from, name, least, most));
}

// Checks the names of a node's workers, which have the form "NODE.NUMBER".
void check_workers(std::span<const std::string> names) {
  check_input(!names.empty() && names.size() <= most_ranks_of_a_node,
              "expected 1 to {} workers, found {}", most_ranks_of_a_node, names.size());
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const auto node = parse_integer(name.substr(0, dot));
    const auto number = parse_integer(dot == std::string::npos ? "" : name.substr(dot + 1));
    check_input(node && number && *node >= 0 && *number >= 0,
                "expected a worker's name, found '{}'", name);
  }
}

// Reads a message of another agent and checks that it is exactly what that agent would write.
template <typename Message>
Message parsed(const char* what, std::string_view text, Message (*read)(const json&)) {
  std::string problem;
  try {
    check_input(text.size() <= most_text_bytes, "expected at most {} bytes, found {}",
                most_text_bytes, text.size());
    Message message = read(sys::parse_json(text, message_limits));
    if (to_text(message) == text) return message;
    problem = "expected the text of an agent";
  } catch (const json::exception& error) {
    problem = sys::json_problem(error);
  } catch (const BadInput& error) {
    problem = error.what();
  }
  throw BadInput(formatted("{} of another agent: {}, found '{}'", what, escaped(problem, 300),
                           escaped(text, 60)));
}

NodeClaim read_node_claim(const json& from) {
  NodeClaim claim{.pid = int_in(from, "pid", 0, most_int),
                  .mark = from.at("mark"),
                  .address = from.at("address"),
                  .host = from.at("host")};
  check_input(!claim.mark.empty() && !claim.address.empty(), "expected a mark and an address");
  return claim;
}

RunResult read_run_result(const json& from) {
  const auto kind = static_cast<RunResult::Kind>(int_in(from, "kind", 0, 2));
  const bool has_failed = kind == RunResult::Kind::failed;
  const json& lines = from.at("last_lines");
  check_input(lines.size() <= most_last_lines, "last_lines: expected at most {} lines, found {}",
              most_last_lines, lines.size());
  const int node = int_in(from, "node", has_failed ? -1 : 0, most_node_number);
  return {.kind = kind,
          .signal = int_in(from, "signal", kind == RunResult::Kind::stopped ? 1 : 0, 64),
          .node = node,
          .exit_code = int_in(from, "exit_code", 0, 255),
          .rank = int_in(from, "rank", -1, node < 0 ? -1 : most_int),
          .pid = int_in(from, "pid", 0, most_int),
          .after = Duration(
              integer_in(from, "nanoseconds", 0, std::numeric_limits<std::int64_t>::max())),
          .at = from.at("at"),
          .how = from.at("how"),
          .log_file = from.at("log_file"),
          .last_lines = lines};
}

JoinRequest read_join_request(const json& from) {
  JoinRequest request{.node = int_in(from, "node", 0, most_node_number),
                      .host = from.at("host"),
                      .address = from.at("address"),
                      .port = int_in(from, "port", 1, 65535),
                      .failed = from.at("failed"),
                      .workers = {}};
  std::vector<std::string> names;
  for (const json& worker : from.at("workers")) {
    names.push_back(worker.at("name"));
    request.workers.push_back({names.back(), worker.at("survives")});
  }
  check_workers(names);
  return request;
}

RoundPlan read_round_plan(const json& from) {
  RoundPlan plan{.round = int_in(from, "round", 0, most_rounds),
                 .restarts = int_in(from, "restarts", 0, most_rounds),
                 .master_address = from.at("master_address"),
                 .master_port = int_in(from, "master_port", 1, 65535),
                 .nodes = {}};
  for (const json& node : from.at("nodes")) {
    plan.nodes.push_back(
        {int_in(node, "node", 0, most_node_number), node.at("host"), node.at("workers")});
    check_workers(plan.nodes.back().workers);
  }
  check_input(!plan.nodes.empty() && plan.nodes.size() <= most_nodes,
              "expected 1 to {} nodes, found {}", most_nodes, plan.nodes.size());
  return plan;
}

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

std::string to_text(const NodeClaim& claim) {
  return json{{"pid", claim.pid},
              {"mark", single_line(claim.mark)},
              {"address", single_line(claim.address)},
              {"host", single_line(claim.host)}}
      .dump();
}

std::string to_text(const RunResult& run_result) {
  const std::span<const std::string> lines(run_result.last_lines);
  json last_lines = json::array();
  for (const std::string& line : lines.last(std::min(lines.size(), most_last_lines)))
    last_lines.push_back(single_line(line));
  return json{{"kind", static_cast<int>(run_result.kind)},
              {"signal", run_result.signal},
              {"node", run_result.node},
              {"exit_code", run_result.exit_code},
              {"rank", run_result.rank},
              {"pid", run_result.pid},
              {"nanoseconds", std::max<std::int64_t>(0, run_result.after.count())},
              {"at", single_line(run_result.at)},
              {"how", single_line(run_result.how)},
              {"log_file", single_line(run_result.log_file)},
              {"last_lines", last_lines}}
      .dump();
}

std::string to_text(const JoinRequest& request) {
  json workers = json::array();
  for (const auto& [name, survives] : request.workers)
    workers.push_back({{"name", name}, {"survives", survives}});
  return json{{"node", request.node},
              {"host", single_line(request.host)},
              {"address", single_line(request.address)},
              {"port", request.port},
              {"failed", request.failed},
              {"workers", workers}}
      .dump();
}

std::string to_text(const RoundPlan& plan) {
  json nodes = json::array();
  for (const auto& [node, host, workers] : plan.nodes)
    nodes.push_back({{"node", node}, {"host", single_line(host)}, {"workers", workers}});
  return json{{"round", plan.round},
              {"restarts", plan.restarts},
              {"master_address", single_line(plan.master_address)},
              {"master_port", plan.master_port},
              {"nodes", nodes}}
      .dump();
}

NodeClaim parse_node_claim(std::string_view text) {
  return parsed("the claim", text, read_node_claim);
}

RunResult parse_run_result(std::string_view text) {
  return parsed("the result of the run", text, read_run_result);
}

JoinRequest parse_join_request(std::string_view text) {
  return parsed("the join request", text, read_join_request);
}

RoundPlan parse_round_plan(std::string_view text) {
  return parsed("the plan of a round", text, read_round_plan);
}
}  // namespace lockstep::launch
