#include "launch/round_plan.h"

#include "base/check.h"
#include "base/format.h"
#include "launch/message_lines.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::string_view offer_version = "lockstep-offer 1", plan_version = "lockstep-plan 1";
constexpr Range node_numbers{0, most_node_number};
constexpr Range counts{0, most_rounds};
constexpr Range worker_counts{1, most_ranks_of_a_node};
constexpr Range ports{1, 65535};

// Nodes stand where they stood; nothing where one has left.
std::vector<std::optional<Offer>> old_places(const RoundPlan* last, std::vector<Offer>& offers) {
  std::vector<std::optional<Offer>> places;
  if (last == nullptr) return places;
  for (const RoundPlan::Node& node : last->nodes) {
    const auto same = std::ranges::find(offers, node.node, &Offer::node);
    if (same == offers.end()) {
      places.emplace_back();
    } else {
      places.emplace_back(std::move(*same));
      offers.erase(same);
    }
  }
  return places;
}

// New nodes take places of the size that they need.
void fill(std::vector<std::optional<Offer>>& places, const RoundPlan& last,
          std::vector<Offer>& offers) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i]) continue;
    const auto fits = std::ranges::find(offers, last.nodes[i].workers.size(),
                                        [](const Offer& offer) { return offer.workers.size(); });
    if (fits == offers.end()) continue;
    places[i] = std::move(*fits);
    offers.erase(fits);
  }
}

RoundPlan::Node to_node(const Offer& offer) {
  RoundPlan::Node node{.node = offer.node, .host = offer.host, .workers = {}};
  for (const Offer::Worker& worker : offer.workers) node.workers.push_back(worker.name);
  return node;
}

// "NODE.NUMBER"
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

RoundPlan plan_round(const RoundPlan* last, std::vector<Offer> offers) {
  check(!offers.empty(), "planning a round: expected a node, found none");
  RoundPlan plan;
  if (last != nullptr) {
    const bool failed = std::ranges::any_of(offers, &Offer::failed);
    plan.round = last->round + 1;
    plan.restarts = last->restarts + (failed ? 1 : 0);
  }
  std::ranges::sort(offers, {}, &Offer::node);
  auto places = old_places(last, offers);
  if (last != nullptr) fill(places, *last, offers);
  for (Offer& offer : offers) places.emplace_back(std::move(offer));
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
                        node.workers.size(), tidy(node.host));
  }
  return text;
}

std::string to_text(const Offer& offer) {
  std::string text =
      formatted("{}\nnode {} {}\naddress {} {}\nfailed {}\n", offer_version, offer.node,
                tidy(offer.host), offer.port, tidy(offer.address), offer.failed ? 1 : 0);
  for (const Offer::Worker& worker : offer.workers)
    text += formatted("worker {} {}\n", worker.name, worker.kept ? "kept" : "new");
  return text;
}

Offer parse_offer(std::string_view text) {
  MessageLines lines("the offer", text);
  if (const auto line = lines.take(); line != offer_version) lines.fail(offer_version, line);
  Offer offer;
  std::string_view node = lines.take("node");
  offer.node = static_cast<int>(take_numbers<1>(lines, node, {node_numbers})[0]);
  offer.host = node;
  std::string_view address = lines.take("address");
  offer.port = static_cast<int>(take_numbers<1>(lines, address, {ports})[0]);
  offer.address = address;
  offer.failed = only_numbers<1>(lines, lines.take("failed"), {{{0, 1}}})[0] == 1;
  while (!lines.at_end() && offer.workers.size() < most_ranks_of_a_node) {
    const std::string_view worker = lines.take("worker");
    const std::size_t blank = worker.find(' ');
    const std::string_view state =
        blank == std::string_view::npos ? std::string_view() : worker.substr(blank + 1);
    if (state != "kept" && state != "new") lines.fail("kept or new", worker);
    offer.workers.push_back({checked_worker(lines, worker.substr(0, blank)), state == "kept"});
  }
  if (offer.workers.empty()) lines.fail("a worker", "");
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return offer;
}

std::string to_text(const RoundPlan& plan) {
  std::string text = formatted("{}\nround {} {}\nmaster {} {}\n", plan_version, plan.round,
                               plan.restarts, plan.master_port, tidy(plan.master_address));
  for (const RoundPlan::Node& node : plan.nodes) {
    text += formatted("node {} {} {}\n", node.node, node.workers.size(), tidy(node.host));
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
