// A training on several hosts loses one of them, with all of its ranks and its memory.
// LOCKSTEP_HOST defines the hosts, each of which has its own folder of commits.
#include <lockstep/elastic/elastic.h>
#include <lockstep/models/mlp.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/parallelize.h>

#include "elastic/copies_or_shards.h"
#include "elastic/small_agent.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;
using test::SmallAgent;

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t steps = 120;

struct HostsTraining {
  bool is_sharded = false;
  bool has_parts = false;            // model copies of two ranks each
  bool keeps_random_numbers = true;  // equally many ranks in all rounds
  fs::path out = {};                 // folder of checkpoints, one every 5 steps
};

struct HostsResult {
  std::vector<float> parameters;
  std::vector<double> drawn;             // sums of random numbers
  std::vector<std::int64_t> begun = {};  // first step of each round
  bool has_trained = false;              // in the last round
};

void train_round(ElasticState& state, const HostsTraining& how, HostsResult& result) {
  torch::manual_seed(1);
  models::Mlp model(models::MlpOptions{.sizes = {6, 40, 3}});
  // The parts of a copy are on neighbouring ranks, hence on one host.
  Handle handle = how.has_parts ? parallelize(model, Mesh(state.group(), {{"dp", -1}, {"tp", 2}}))
                                : test::copies_or_shards(*model, state.group(), how.is_sharded);
  optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.01));
  at::Tensor drawn = at::zeros({3}, at::kDouble);
  state.attach(handle, adamw, {.tensors = {{"drawn", drawn}}});
  result.begun.push_back(state.step());
  while (state.step() < steps) {
    handle.zero_grad();
    const at::Tensor input = at::full({4, 6}, 0.01 * static_cast<double>(state.step() + 1));
    at::mse_loss(model->forward(input), at::ones({4, 3})).backward();
    adamw.step();
    if (how.keeps_random_numbers) drawn += at::rand({3}, at::kDouble);
    state.commit();
  }
  for (const auto& [name, tensor] : handle.state_dict()) {
    const at::Tensor flat = tensor.detach().reshape({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i)
      result.parameters.push_back(flat[i].item<float>());
  }
  for (std::int64_t i = 0; i < drawn.numel(); ++i) result.drawn.push_back(drawn[i].item<double>());
}

HostsResult trained(const HostsTraining& how) {
  HostsResult result;
  ElasticState state({.out = how.out,
                      .save_every = how.out.empty() ? 0 : 5,
                      .ranks_of_a_model = how.has_parts ? 2 : 1});
  result.has_trained = elastic(state, [&](ElasticState& inner) {
    result.parameters.clear();
    result.drawn.clear();
    train_round(inner, how, result);
  });
  return result;
}

// In round 0, ranks 0 and 1 are on host a, 2 and 3 on b; processes of later rounds are on c.
std::string own_host() {
  if (std::string(std::getenv("LOCKSTEP_ROUND")) != "0") return "c";
  return std::atoi(std::getenv("RANK")) < 2 ? "a" : "b";
}

class Hosts {
 public:
  explicit Hosts(HostsTraining how)
      : how_(std::move(how)),
        undisturbed_(trained({.keeps_random_numbers = how_.keeps_random_numbers})),
        agent_([this] { return work(); }, {.backend = "gloo"}) {}

  // Kills all ranks of host a; the next round has `ranks` ranks.
  void lose_a_host(int ranks) {
    agent_.begin_round(4);
    if (how_.out.empty())
      wait_for("b", memory("b"));  // the second buffer: the first commit is whole on all hosts
    else
      wait_for("LATEST", how_.out);
    agent_.kill(0);
    agent_.kill(1);
    fs::remove_all(memory("a"));
    agent_.begin_round(ranks);
    for (const int code : agent_.wait()) EXPECT_EQ(code, 0);
  }

 private:
  [[nodiscard]] fs::path memory(const std::string& host) const {
    return agent_.folder() / ("commits-" + host);
  }
  // Waits until a file of that name is below the folder: a commit of both hosts, or a checkpoint.
  static void wait_for(const std::string& name, const fs::path& folder) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    const auto is_there = [&] {
      std::error_code gone;
      for (const auto& entry : fs::recursive_directory_iterator(folder, gone))
        if (entry.path().filename() == name) return true;
      return false;
    };
    while (!is_there() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(2ms);
  }

  int work() {
    const std::string host = own_host();
    ::setenv("LOCKSTEP_HOST", host.c_str(), 1);
    ::setenv("LOCKSTEP_COMMITS", memory(host).c_str(), 1);
    fs::create_directories(memory(host));
    const HostsResult result = trained(how_);
    EXPECT_TRUE(result.has_trained);
    expect_undisturbed(result.parameters);
    EXPECT_EQ(result.drawn, undisturbed_.drawn);
    EXPECT_EQ(result.begun.size(), host == "c" ? 1U : 2U);
    if (!how_.out.empty()) EXPECT_EQ(result.begun.back() % 5, 0) << "from a checkpoint";
    EXPECT_GT(result.begun.back(), 0) << "nothing was taken up";
    return 0;
  }

  // Compares with an undisturbed run. If ranks have parts of a layer, its sums are rounded
  // differently.
  void expect_undisturbed(const std::vector<float>& parameters) const {
    if (!how_.has_parts) {
      EXPECT_EQ(parameters, undisturbed_.parameters);
      return;
    }
    ASSERT_EQ(parameters.size(), undisturbed_.parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_NEAR(parameters[i], undisturbed_.parameters[i], 1e-3) << i;
  }

  const HostsTraining how_;
  const HostsResult undisturbed_;
  SmallAgent agent_;
};

TEST(LostHost, TheOthersGoOnFromTheirOwnMemory) {
  Hosts({.keeps_random_numbers = false}).lose_a_host(2);
}

// Each host had a copy of the model, in parts.
TEST(LostHost, ACopyInPartsGoesOnFromItsHostsMemory) {
  Hosts({.has_parts = true, .keeps_random_numbers = false}).lose_a_host(2);
}

// Rank 0 is on a host without a commit, so the commit is sent to it. The number of ranks is the
// same as before, so random generators are restored, although two of the states belonged to the
// lost host.
TEST(LostHost, AnotherHostInItsPlaceTakesTheirState) { Hosts({}).lose_a_host(4); }

// No host has the whole state, so the run uses a checkpoint.
TEST(LostHost, OfPartsOnSeveralHostsTheNewestCheckpointCounts) {
  const test::TemporaryFolder folder;
  Hosts({.is_sharded = true, .keeps_random_numbers = false, .out = folder / "out"}).lose_a_host(2);
}

}  // namespace
