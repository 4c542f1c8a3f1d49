// elastic() with ranks that are processes, each with simulated devices of its own. Tensors are
// staged through host memory. Killed ranks and rounds of another size do not change the numbers,
// which are those of one process on the CPU, and no rank reports a fault.
#include <lockstep/checkpoint/safetensors.h>

#include "elastic/small_agent.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "train/elastic_runs.h"

#include <ATen/ops/allclose.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep;
using test::SmallAgent;

namespace {

namespace fs = std::filesystem;

struct ElasticCase {
  std::string strategy;
  bool shares_device = false;  // all ranks use device 0
};

void PrintTo(const ElasticCase& what, std::ostream* out) { *out << what.strategy; }

// Replaces this process. A fork alone is not enough, because it has no copies of the threads of
// LibTorch's devices.
int become_rank(std::vector<std::string> words) {
  words.insert(words.begin(),
               fs::read_symlink("/proc/self/exe").parent_path() / "programs/elastic_rank");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(arguments.front(), arguments.data());
  return errno;
}

checkpoint::NamedTensors parameters_in(const fs::path& out, int rank) {
  return checkpoint::read_safetensors(out / (std::to_string(rank) + ".safetensors")).tensors;
}

// Returns the parameters that one process on the CPU has.
checkpoint::NamedTensors trained_by_one_process(const std::string& strategy) {
  const test::TemporaryFolder out;
  test::expect_ranks(1, [&](int) {
    ::setenv("LOCKSTEP_DEVICE", "cpu", 1);
    ::_exit(become_rank({strategy, "", out.path()}));
  });
  return parameters_in(out.path(), 0);
}

void expect_parameters(const fs::path& out, int rank, const checkpoint::NamedTensors& expected,
                       bool is_exact) {
  const auto found = parameters_in(out, rank);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(is_exact ? found.at(name).equal(tensor)
                         : at::allclose(found.at(name), tensor, 1e-4, 1e-5))
        << name << " of rank " << rank;
}

class ElasticOnDevices : public testing::TestWithParam<ElasticCase> {
 protected:
  [[nodiscard]] SmallAgent::Options options() const {
    if (!GetParam().shares_device) return {};
    return {.environment = {{"LOCKSTEP_DEVICE", "sim:0"}, {"LOCKSTEP_SHARE_GPUS", "1"}}};
  }
  [[nodiscard]] SmallAgent::Body rank(const std::string& losses) const {
    return [=, out = out_.path()] { return become_rank({GetParam().strategy, losses, out}); };
  }
  void expect_numbers_of_one_process(int ranks) const {
    const bool has_parts = GetParam().strategy == "tp";  // whose sums are rounded differently
    const auto expected = trained_by_one_process(has_parts ? "ddp" : GetParam().strategy);
    for (int rank = 0; rank < ranks; ++rank)
      expect_parameters(out_.path(), rank, expected, !has_parts);
  }
  // Waits until the worker has ended, and forgets it.
  static void lose(SmallAgent& agent, int rank) {
    siginfo_t ended{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(agent.pid(rank)), &ended, WEXITED | WNOWAIT), 0);
    ASSERT_EQ(ended.si_code, CLD_KILLED) << "ended by itself, with " << ended.si_status;
    agent.kill(rank);
  }

  test::TemporaryFolder out_;
};

TEST_P(ElasticOnDevices, LostRanksDoNotChangeTheNumbers) {
  SmallAgent agent(rank("0.1.2.before,1.0.5.after"), options());
  agent.begin_round(2);
  lose(agent, 1);
  agent.begin_round(4);
  lose(agent, 0);
  agent.begin_round(2);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0}));
  expect_numbers_of_one_process(2);
}

class ElasticCheckpointsOnDevices : public ElasticOnDevices {};

TEST_P(ElasticCheckpointsOnDevices, AreTakenUpByARunWithoutItsMemory) {
  SmallAgent agent(rank("0.0.4.before,0.1.4.before"), options());
  agent.begin_round(2);
  lose(agent, 0);
  lose(agent, 1);
  fs::remove_all(agent.commits());
  fs::create_directory(agent.commits());
  agent.begin_round(2);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0}));
  expect_numbers_of_one_process(2);
}

std::string name_of_elastic_case(const testing::TestParamInfo<ElasticCase>& info) {
  return info.param.strategy + (info.param.shares_device ? "_on_one_device" : "");
}

INSTANTIATE_TEST_SUITE_P(Strategies, ElasticOnDevices,
                         testing::Values(ElasticCase{"ddp"}, ElasticCase{"ddp", true},
                                         ElasticCase{"optimizer"}, ElasticCase{"gradients"},
                                         ElasticCase{"full"}, ElasticCase{"full", true},
                                         ElasticCase{"slots"}, ElasticCase{"tp"}),
                         name_of_elastic_case);

INSTANTIATE_TEST_SUITE_P(Strategies, ElasticCheckpointsOnDevices,
                         testing::Values(ElasticCase{"ddp"}, ElasticCase{"full"},
                                         ElasticCase{"tp"}),
                         name_of_elastic_case);

// Trains a small gpt by `lockstep train --elastic` while `disturb` kills ranks, and returns the
// bytes of the model.
std::string trained_by_trainer(const fs::path& out, const std::string& options,
                               const std::function<void(SmallAgent&)>& disturb) {
  std::istringstream line("train gpt --elastic --data " +
                          (out.parent_path() / "text.txt").string() + " --out " + out.string() +
                          " --steps 40 --batch 8 --layers 2 --heads 2 --width 16 --block 8"
                          " --dropout 0.1 --eval-every 10 --save-every 15 --log-every 1"
                          " --threads 1 --elastic-micro-batches 4 " +
                          options);
  const std::vector<std::string> words{std::istream_iterator<std::string>(line), {}};
  SmallAgent agent(
      [&] { return std::freopen("/dev/null", "w", stdout) == nullptr ? 1 : become_rank(words); });
  disturb(agent);
  for (const int code : agent.wait()) EXPECT_EQ(code, 0) << out;
  return train::bytes_of_file(out / "model.safetensors");
}

TEST(ElasticTrainerOnDevices, HasTheBytesOfOneProcessAfterLosses) {
  const test::TemporaryFolder folder;
  test::write_tiny_text(folder / "text.txt");
  const std::string expected = trained_by_trainer(folder / "alone", "--device sim",
                                                  [](SmallAgent& agent) { agent.begin_round(1); });
  EXPECT_FALSE(expected.empty());
  for (const std::string shard : {"none", "full"}) {
    train::RunSetup run;
    run.out = folder / shard;
    const auto disturb = [&](SmallAgent& agent) {
      train::kill_and_shrink(agent, run, 12, 20);
      agent.begin_round(3, "nodes join");
    };
    EXPECT_TRUE(trained_by_trainer(run.out, "--device sim --shard " + shard, disturb) == expected)
        << shard;
  }
}

}  // namespace
