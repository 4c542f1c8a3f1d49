#include "apps/run.h"

#include "apps/program.h"
#include "base/check.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/text.h"
#include "launch/agent.h"

#include <map>
#include <optional>

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

// As typed: read with errors of our own, which say what was expected.
struct Words {
  std::string ranks = "1", log_folder, prefix = "rank", input = "rank-0", grace = "30s",
              failure_grace = "5s", port = "0", nodes = "1", node, rendezvous, secret_file,
              join_timeout = "5m", lost_after = "15s", last_call = "5s", store, max_restarts = "0",
              reserve = "1", hung_after = "0";
};

int to_number(const char* option, const std::string& text, int least, int most) {
  const auto number = parse_integer(text);
  check_input(number && *number >= least && *number <= most,
              "{}: expected a whole number from {} to {}, found '{}'", option, least, most, text);
  return static_cast<int>(*number);
}

Duration to_duration(const char* option, const std::string& text) {
  const auto duration = parse_duration(text);
  check_input(duration && *duration >= Duration::zero(),
              "{}: expected a time such as 10, 2.5s or 1m, found '{}'", option, text);
  return *duration;
}

template <typename Value>
Value to_choice(const char* option, const std::string& text,
                const std::map<std::string_view, Value>& choices) {
  const auto found = choices.find(text);
  if (found != choices.end()) return found->second;
  std::vector<std::string_view> known;
  for (const auto& [name, value] : choices) known.push_back(name);
  throw BadInput(formatted("{}: {}", option, unknown_name("value", text, known)));
}

// "4", or "1:4".
void read_node_counts(const std::string& text, launch::NodeSpec& spec) {
  constexpr int most_nodes = 10'000;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    spec.nodes = to_number("--nnodes", text, 1, most_nodes);
    return;
  }
  const auto least = parse_integer(text.substr(0, colon)),
             most = parse_integer(text.substr(colon + 1));
  check_input(least && most && *least >= 1 && *least <= *most && *most <= most_nodes,
              "--nnodes: expected a number, or MIN:MAX with 1 <= MIN <= MAX <= {}, found '{}'",
              most_nodes, text);
  spec.least_nodes = static_cast<int>(*least);
  spec.nodes = static_cast<int>(*most);
}

// Rounds need no --node-rank but for the node that serves the store.
int to_node(const Words& words, const launch::NodeSpec& spec, bool rounds) {
  if (!words.node.empty()) return to_number("--node-rank", words.node, 0, spec.nodes - 1);
  check_input(rounds, "--node-rank is missing; --nnodes is {}", words.nodes);
  return spec.nodes;  // any but 0
}

void check_one_node(const Words& words) {
  check_input(words.rendezvous.empty() && words.secret_file.empty(),
              "--rendezvous and --secret-file are for several nodes; --nnodes is 1");
}

launch::NodeSpec to_nodes(const Words& words, int max_restarts) {
  launch::NodeSpec spec;
  read_node_counts(words.nodes, spec);
  spec.join_timeout = to_duration("--join-timeout", words.join_timeout);
  spec.last_call = to_duration("--last-call", words.last_call);
  spec.lost_after = to_duration("--lost-after", words.lost_after);
  check_input(spec.lost_after >= std::chrono::seconds(3),
              "--lost-after: expected 3 seconds or more, found '{}'", words.lost_after);
  spec.store = words.store;
  spec.secret_file = words.secret_file;
  const bool apart = !spec.store.empty();
  if (spec.nodes == 1 && !apart) {
    check_one_node(words);
    if (!words.node.empty()) spec.node = to_number("--node-rank", words.node, 0, 0);
    return spec;
  }
  check_input(words.port == "0", "--port: the store of several nodes is at --rendezvous");
  check_input(!apart || words.rendezvous.empty(),
              "--store and --rendezvous name two stores; expected one of them");
  const bool rounds = apart || max_restarts > 0 || launch::least_nodes(spec) < spec.nodes;
  spec.node = apart ? spec.nodes : to_node(words, spec, rounds);
  check_input(apart || !words.rendezvous.empty(), "--rendezvous is missing; --nnodes is {}",
              words.nodes);
  spec.rendezvous = words.rendezvous;
  return spec;
}

launch::WorkerSpec to_spec(const Words& words) {
  using launch::PrefixStyle, launch::StandardInput;
  constexpr int most_ranks = 10'000;
  launch::WorkerSpec spec;
  spec.ranks = to_number("--ranks", words.ranks, 1, most_ranks);
  spec.log_folder = words.log_folder;
  spec.prefix = to_choice<PrefixStyle>("--prefix", words.prefix,
                                       {{"rank", PrefixStyle::rank}, {"none", PrefixStyle::none}});
  spec.input = to_choice<StandardInput>(
      "--stdin", words.input, {{"rank-0", StandardInput::rank_0}, {"none", StandardInput::none}});
  spec.grace = to_duration("--grace", words.grace);
  spec.failure_grace = to_duration("--failure-grace", words.failure_grace);
  spec.max_restarts = to_number("--max-restarts", words.max_restarts, 0, 1'000'000);
  spec.reserve = to_number("--reserve", words.reserve, 0, most_ranks);
  spec.hung_after = to_duration("--hung-after", words.hung_after);
  check_input(spec.hung_after == Duration::zero() || spec.hung_after >= std::chrono::seconds(1),
              "--hung-after: expected 1 second or more, or 0, found '{}'", words.hung_after);
  spec.nodes = to_nodes(words, spec.max_restarts);
  spec.store_port = to_number("--port", words.port, 0, 65535);
  spec.forward_signals = true;
  return spec;
}

void declare(CommandOptions& options, Words& words) {
  const auto add = [&](const char* name, const char* type, std::string& value,
                       const char* description, char letter = 0) {
    options.add({name, type, description, value, letter}, text_into(value));
  };
  add("ranks", "N", words.ranks, "Number of ranks on this node", 'n');
  add("log-dir", "DIR", words.log_folder,
      "Also write each rank's output, unchanged, to DIR/rank-N.log");
  add("prefix", "STYLE", words.prefix,
      "rank: '[rank 1] ' before each line; none: the bytes as they are");
  add("stdin", "RANK", words.input, "rank-0: standard input goes to rank 0; none: to nobody");
  add("grace", "TIME", words.grace, "From a signal that was passed on to SIGKILL");
  add("failure-grace", "TIME", words.failure_grace,
      "From SIGTERM to SIGKILL for the ranks that survive a failure");
  add("port", "PORT", words.port, "Port of the store on 127.0.0.1; 0: a free one");
  add("max-restarts", "K", words.max_restarts,
      "How often a rank may fail before the run has: all ranks are started anew, as another round");
  add("reserve", "N", words.reserve,
      "With --max-restarts: processes that wait for ranks to be lost, of a program that can do so");
  add("hung-after", "TIME", words.hung_after,
      "A rank without a sign of life for this long is killed, and has failed; 0: none is");
  add("nnodes", "M", words.nodes,
      "Number of nodes, agents like this one; MIN:MAX: they may come and go");
  add("node-rank", "K", words.node,
      "Number of this node, 0 to M-1; ranks are numbered by node. With MIN:MAX only 0 is needed");
  add("rendezvous", "HOST:PORT", words.rendezvous,
      "Where the nodes meet: an address of node 0, which listens there");
  add("store", "HOST:PORT", words.store,
      "Where the nodes meet: a `lockstep store`, which may outlive any of them");
  add("secret-file", "FILE", words.secret_file,
      "What only agents of this run know: 16 bytes or more, mode 600, the same on all nodes");
  add("join-timeout", "TIME", words.join_timeout, "Until all nodes must have come");
  add("last-call", "TIME", words.last_call,
      "With MIN:MAX: for more nodes to come, once MIN are there, before the ranks start");
  add("lost-after", "TIME", words.lost_after,
      "Without a sign of life of a node's agent, until the run has failed");
}

launch::WorkerSpec to_spec(const Words& words, const std::vector<std::string>& program) {
  launch::WorkerSpec spec = to_spec(words);
  check_input(!program.empty(), "no program to run was named; see lockstep run --help");
  spec.program = program.front();
  spec.arguments.assign(program.begin() + 1, program.end());
  return spec;
}

}  // namespace

int run_command(const std::vector<std::string>& words) {
  return sys::run_program("lockstep run", [&] {
    CommandOptions options("lockstep run", "[OPTIONS] PROGRAM [ARGUMENTS...]", about,
                           CommandOptions::Words::begin_a_program);
    Words parsed;
    declare(options, parsed);
    const auto request = options.read(words);
    if (const auto code = answer(request, options)) return *code;
    std::optional<launch::Agent> agent;
    try {
      agent.emplace(to_spec(parsed, options.words()));
    } catch (const BadInput& error) {
      throw UsageError(error.what());
    }
    return agent->run().exit_code;
  });
}

}  // namespace lockstep::apps
