// Damage to the committed state by another program, such as a cleaner of /dev/shm, or by an
// administrator.
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/elastic/elastic.h>
#include <lockstep/models/mlp.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "elastic/small_agent.h"
#include "support/temporary_folder.h"

#include <torch/utils.h>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;
using test::SmallAgent;

namespace {

namespace fs = std::filesystem;

enum class Damage { removed, emptied, overwritten };

// Damages a file of each buffer as another program might.
void damage(const fs::path& commits, Damage how) {
  for (const auto& entry : fs::recursive_directory_iterator(commits)) {
    if (entry.path().filename() != "optimizer.safetensors") continue;
    if (how == Damage::removed) fs::remove(entry.path());
    if (how == Damage::emptied) fs::resize_file(entry.path(), 0);
    if (how == Damage::overwritten)
      std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(8)
          << std::string(100, 'x');
  }
}

// Two ranks commit until the test ends their round; `begins` sees the state of the next round.
SmallAgent committing_agent(const ElasticOptions& options,
                            const std::function<void(ElasticState&)>& begins) {
  return SmallAgent([=] {
    ElasticState state(options);
    (void)elastic(state, [&](ElasticState& inner) {
      torch::manual_seed(1);
      models::Mlp model(models::MlpOptions{.sizes = {6, 70, 3}});
      DistributedDataParallel ddp(model, inner.group());
      optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
      inner.attach(ddp, adamw);
      if (inner.round() > 0) return begins(inner);
      for (;;) inner.commit();
    });
    return 0;
  });
}

void stop_and_kill_all(SmallAgent& agent, const std::function<void()>& meanwhile) {
  for (int rank : {0, 1}) ::kill(agent.pid(rank), SIGSTOP);
  meanwhile();
  for (int rank : {0, 1}) agent.kill(rank);
}

TEST(DamagedCommits, ADamagedStateGivesWayToTheNewestCheckpoint) {
  for (const Damage how : {Damage::removed, Damage::emptied, Damage::overwritten}) {
    const test::TemporaryFolder out;
    const ElasticOptions options{.out = out.path(), .save_every = 10};
    SmallAgent agent = committing_agent(options, [](ElasticState& state) {
      EXPECT_GT(state.step(), 0);
      EXPECT_EQ(state.step() % 10, 0) << "not of a checkpoint";
    });
    agent.begin_round(2);
    while (checkpoint::list_checkpoints(out.path()).empty()) std::this_thread::sleep_for(5ms);
    stop_and_kill_all(agent, [&] { damage(agent.commits(), how); });
    agent.begin_round(2);
    EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0})) << static_cast<int>(how);
  }
}

// A cleaner of /dev/shm does no harm while ranks are running.
TEST(DamagedCommits, FilesThatAreRemovedOrCutMeanwhileAreMadeAnew) {
  for (const Damage how : {Damage::removed, Damage::emptied}) {
    SmallAgent agent =
        committing_agent({}, [](ElasticState& state) { EXPECT_GT(state.step(), 0); });
    agent.begin_round(2);
    while (!fs::exists(agent.commits()) || fs::is_empty(agent.commits()))
      std::this_thread::sleep_for(5ms);
    std::this_thread::sleep_for(100ms);
    for (int rank : {0, 1}) ::kill(agent.pid(rank), SIGSTOP);
    damage(agent.commits(), how);
    for (int rank : {0, 1}) ::kill(agent.pid(rank), SIGCONT);
    std::this_thread::sleep_for(300ms);
    stop_and_kill_all(agent, [] {});
    agent.begin_round(2);
    EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0})) << static_cast<int>(how);
  }
}

}  // namespace
