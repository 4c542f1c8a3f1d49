// Runs the agents of several nodes, each in its own process on this machine.
#pragma once

#include "launch/run_agent.h"
#include "support/free_port.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::launch {

struct NodeRan {
  int exit_code = -1;  // of run(); -1 if it threw
  std::string output, error;
  std::string problem;  // the error that run() threw
  std::chrono::milliseconds took{};
  test::RankResult process;
};

// The spec of one of `nodes` nodes whose ranks run `script`.
inline WorkerSpec node_spec(int nodes, int node, std::uint16_t port, int ranks,
                            std::string script) {
  WorkerSpec spec = shells(ranks, std::move(script));
  spec.nodes = {.nodes = nodes,
                .node = node,
                .rendezvous = "127.0.0.1:" + std::to_string(port),
                .join_timeout = far_too_long};
  return spec;
}

inline std::string file_content(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Functions that a test runs in an agent's process before and after the run.
struct AroundAgent {
  std::function<void(int agent)> before;
  std::function<void(const std::string& problem)> after;
};

// Runs one agent per spec, all at the same time, except that `around.before` may delay an agent.
// The user's secret is replaced by one of the test.
inline std::vector<NodeRan> run_nodes(const std::vector<WorkerSpec>& specs,
                                      const AroundAgent& around = {}) {
  const test::TemporaryFolder folder;
  const auto file = [&](int agent, const char* what) {
    return folder / (std::to_string(agent) + "." + what);
  };
  test::RankProcesses agents(static_cast<int>(specs.size()), [&](int agent) {
    if (around.before) around.before(agent);
    ::setenv("XDG_STATE_HOME", (folder / "state").c_str(), 1);
    const Screen output, error;
    WorkerSpec spec = specs[agent];
    spec.output = output.descriptor();
    spec.error = error.descriptor();
    const auto begin = Clock::now();
    int exit_code = -1;
    std::string problem;
    try {
      exit_code = Agent(std::move(spec)).run().exit_code;
    } catch (const std::exception& exception) {
      problem = exception.what();
    }
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    if (around.after) around.after(problem);
    std::ofstream(file(agent, "output")) << output.text();
    std::ofstream(file(agent, "error")) << error.text();
    std::ofstream(file(agent, "problem")) << problem;
    std::ofstream(file(agent, "numbers")) << exit_code << " " << took.count();
  });
  const auto processes = agents.wait(test::rank_limit);
  std::vector<NodeRan> ran(specs.size());
  for (int agent = 0; agent < static_cast<int>(specs.size()); ++agent) {
    long long took = 0;
    std::ifstream(file(agent, "numbers")) >> ran[agent].exit_code >> took;
    ran[agent].took = std::chrono::milliseconds(took);
    ran[agent].output = file_content(file(agent, "output"));
    ran[agent].error = file_content(file(agent, "error"));
    ran[agent].problem = file_content(file(agent, "problem"));
    ran[agent].process = processes[agent];
  }
  return ran;
}

// The last agent starts first, with as short a head start as possible. So the test's assumptions
// about the last agent's peers hold even if they do not wait for it.
inline AroundAgent last_one_first(int agents, const test::TemporaryFolder& folder) {
  const std::string begun = folder / "last-one-begins";
  return {.before =
              [=](int agent) {
                if (agent == agents - 1) std::ofstream(begun).flush();
                while (!std::filesystem::exists(begun))
                  std::this_thread::sleep_for(std::chrono::milliseconds(1));
              },
          .after = {}};
}

}  // namespace lockstep::launch
