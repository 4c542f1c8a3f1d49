#include "apps/commands.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "launch/agent.h"
#include "sys/program.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::apps {

namespace {

constexpr const char* about =
    "Starts PROGRAM with its arguments as N ranks on this machine and ends them together. Over "
    "several machines, start it\n"
    "on each, with its own --node-rank; N may differ from node to node.\n\n"
    "Each rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK, ... as under torchrun. Lines are "
    "printed with the rank in\n"
    "front; standard input goes to rank 0. SIGINT, SIGTERM and SIGHUP are passed on; a second "
    "SIGINT kills. When a rank\n"
    "fails the others are ended, the first failure is shown with its last lines, and its exit code "
    "is returned (128 + the\n"
    "number for a signal; 127: PROGRAM was not found; 126: it cannot be executed; 2: a mistake in "
    "these options). Over\n"
    "several nodes that holds on all of them: each shows the first failure of any node and returns "
    "its exit code; a node\n"
    "that vanishes is such a failure, with code 1. A request to stop reaches all nodes.\n\n"
    "  host-a$ lockstep run --nnodes 2 --node-rank 0 --rendezvous host-a:29400 --secret-file key "
    "-n 4 ./train\n"
    "  host-b$ lockstep run --nnodes 2 --node-rank 1 --rendezvous host-a:29400 --secret-file key "
    "-n 4 ./train\n";

// Reads the value of --nnodes: "4", or "1:4".
void read_node_counts(const std::string& text, launch::NodeSpec& spec) {
  constexpr int most_nodes = 10'000;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    spec.least_nodes = 0;
    spec.nodes = static_cast<int>(checked_number(text, 1, most_nodes));
    return;
  }
  const auto least = parse_integer(text.substr(0, colon)),
             most = parse_integer(text.substr(colon + 1));
  check_input(least && most && *least >= 1 && *least <= *most && *most <= most_nodes,
              "expected a number, or MIN:MAX with 1 <= MIN <= MAX <= {}, found '{}'", most_nodes,
              text);
  spec.least_nodes = static_cast<int>(*least);
  spec.nodes = static_cast<int>(*most);
}

// `node` is --node-rank as typed; empty: not given.
void check_nodes(launch::WorkerSpec& spec, const std::string& node) {
  launch::NodeSpec& nodes = spec.nodes;
  const bool apart = !nodes.store.empty();
  const bool several = nodes.nodes > 1 || apart;
  if (!several)
    check_input(nodes.rendezvous.empty() && nodes.secret_file.empty(),
                "--rendezvous and --secret-file are for several nodes, but --nnodes is 1");
  check_input(!apart || nodes.rendezvous.empty(), "give --store or --rendezvous, not both");
  const std::string counts = nodes.least_nodes == 0
                                 ? std::to_string(nodes.nodes)
                                 : formatted("{}:{}", nodes.least_nodes, nodes.nodes);
  // If the run may have several rounds, only the node that serves the store needs --node-rank.
  check_input(!several || !node.empty() || may_have_more_rounds(spec),
              "--node-rank is missing: --nnodes {} needs it on each node", counts);
  check_input(
      !several || apart || !nodes.rendezvous.empty(),
      "--rendezvous is missing: --nnodes {} needs it on each node, such as --rendezvous HOST:29400",
      counts);
  if (apart || (several && node.empty())) {
    nodes.node = nodes.nodes;  // any node other than 0
  } else if (!node.empty()) {
    const auto number = parse_integer(node);
    check_input(number && *number >= 0 && *number < nodes.nodes,
                "--node-rank: expected an integer from 0 to {}, found '{}'", nodes.nodes - 1, node);
    nodes.node = static_cast<int>(*number);
  }
}

// `expected` is for the message: "3 seconds or more".
CommandOptions::Take time_into(Duration& target, Duration least, bool may_be_0,
                               const char* expected) {
  return [=, &target](const std::string& text) {
    duration_into(target)(text);
    check_input(target >= least || (may_be_0 && target == Duration::zero()),
                "expected {}, found '{}'", expected, text);
  };
}

void declare(CommandOptions& options, launch::WorkerSpec& spec, std::string& node) {
  using launch::PrefixStyle, launch::StandardInput;
  constexpr int most_ranks = 10'000;
  launch::NodeSpec& nodes = spec.nodes;
  const auto add = [&](const char* name, const char* value, CommandOptions::Take take,
                       const std::string& standard, const char* help, char letter = 0) {
    options.add({name, value, help, standard, letter}, std::move(take));
  };
  add("ranks", "N", number_into(spec.ranks, 1, most_ranks), "1", "Number of ranks on this node",
      'n');
  add("gpus-per-rank", "N", number_into(spec.gpus_per_rank, 0, 1024), "0",
      "Give each rank N GPUs of its own, by CUDA_VISIBLE_DEVICES; 0: each rank sees all");
  options.add({"share-gpus", "", "Let ranks share a GPU if there are more ranks than GPUs"},
              flag_into(spec.shares_gpus));
  add("log-dir", "DIR", text_into(spec.log_folder), "",
      "Also write each rank's output, unchanged, to DIR/rank-N.log");
  add("prefix", "STYLE",
      choice_into(spec.prefix, {{"rank", PrefixStyle::rank}, {"none", PrefixStyle::none}}), "rank",
      "rank: '[rank 1] ' before each line; none: the bytes as they are");
  add("stdin", "RANK",
      choice_into(spec.input, {{"rank-0", StandardInput::rank_0}, {"none", StandardInput::none}}),
      "rank-0", "rank-0: standard input goes to rank 0; none: to no rank");
  add("grace", "TIME", duration_into(spec.grace), format_duration(spec.grace),
      "Time from a forwarded signal to SIGKILL");
  add("failure-grace", "TIME", duration_into(spec.failure_grace),
      format_duration(spec.failure_grace),
      "Time from SIGTERM to SIGKILL for the ranks that survive a failure");
  add("max-restarts", "K", number_into(spec.max_restarts, 0, 1'000'000), "0",
      "How often a rank may fail before the run fails; each time, all ranks start again as a new "
      "round");
  add("hot-spares", "N", number_into(spec.hot_spares, 0, most_ranks),
      std::to_string(spec.hot_spares),
      "With --max-restarts: hot spare processes that replace lost ranks, if the program supports "
      "them");
  add("hung-after", "TIME",
      time_into(spec.hung_after, std::chrono::seconds(1), true, "1 second or more, or 0"), "0",
      "Kill a rank that is stopped (SIGSTOP) for this long, or that has such a process, as failed; "
      "0: never");
  add(
      "nnodes", "M", [&nodes](const std::string& text) { read_node_counts(text, nodes); }, "1",
      "Number of nodes (agents like this one); MIN:MAX: nodes may join and leave");
  add("node-rank", "K", text_into(node), "",
      "Number of this node, 0 to M-1; ranks are numbered by node. With MIN:MAX only 0 is needed");
  add("rendezvous", "HOST:PORT", text_into(nodes.rendezvous), "",
      "Where the nodes meet: an address of node 0, which listens there");
  add("store", "HOST:PORT", text_into(nodes.store), "",
      "Where the nodes meet: a `lockstep store`, which may outlive any of them");
  add("secret-file", "FILE", text_into(nodes.secret_file), "",
      "Secret that only agents of this run know: 16 bytes or more, mode 600, the same on all "
      "nodes");
  add("join-timeout", "TIME", time_into(nodes.join_timeout, Duration(1), false, "more than 0s"),
      format_duration(nodes.join_timeout), "How long to wait for all nodes");
  add("last-call", "TIME", duration_into(nodes.last_call), format_duration(nodes.last_call),
      "With MIN:MAX: how long to wait for more nodes when MIN have arrived, before the ranks "
      "start");
  add("lost-after", "TIME",
      time_into(nodes.lost_after, std::chrono::seconds(3), false, "3 seconds or more"),
      format_duration(nodes.lost_after),
      "How long a node's agent may be silent before the run fails");
}

}  // namespace

int run_command(const std::vector<std::string>& words) {
  return sys::run_program("lockstep run", [&] {
    CommandOptions options("lockstep run", "[OPTIONS] PROGRAM [ARGUMENTS...]", about,
                           CommandOptions::Words::begin_a_program);
    launch::WorkerSpec spec;
    std::string node;
    declare(options, spec, node);
    if (const auto code = sys::answer(options.read(words), options)) return *code;
    std::optional<launch::Agent> agent;
    try {
      check_nodes(spec, node);
      check_input(!options.words().empty(), "no program was named: lockstep run -n 2 PROGRAM");
      spec.program = options.words().front();
      spec.arguments.assign(options.words().begin() + 1, options.words().end());
      spec.forward_signals = true;
      agent.emplace(std::move(spec));
    } catch (const BadInput& error) {
      throw UsageError(error.what());
    }
    return agent->run().exit_code;
  });
}

}  // namespace lockstep::apps
