// One rank of a parallel model is killed, throws, or never returns from its computation in the
// middle of a step: the other ranks get a one-line error that names a rank, and a rank that throws
// gets its own exception.
#include "parallel/composition.h"

#include <lockstep/comm/init.h>
#include <lockstep/comm/local.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/pipeline/pipeline.h>

#include "parallel/pipeline/support.h"
#include "support/processes.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <csignal>

#include <chrono>
#include <functional>
#include <latch>
#include <list>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;
using namespace std::chrono_literals;

using Deed = std::function<void()>;

struct NoRoom : std::runtime_error {
  NoRoom() : std::runtime_error("no room") {}
};

enum class WayToFail { throws, is_killed, computes_for_ever };

void fail_by(WayToFail how) {
  if (how == WayToFail::throws) throw NoRoom();
  if (how == WayToFail::is_killed) ::raise(SIGKILL);
  std::this_thread::sleep_for(std::chrono::minutes(5));
}

// A step of a model on the ranks of a group. The failing rank calls `deed` in the middle of the
// step; on other ranks, `deed` does nothing.
struct ParallelStep {
  int ranks = 0;
  std::function<void(Group, const Deed& deed)> run;
  // If false, the error may name another rank, one that waits for the failed rank in another group.
  bool names_the_failed_rank = true;
};

ParallelStep step_of_layers() {
  return {3, [](const Group& group, const Deed& deed) {
            torch::nn::Sequential net(torch::nn::Linear(6, 12), torch::nn::ReLU(),
                                      torch::nn::Linear(12, 6));
            auto tp = parallelize(net, Mesh(group, {{"tp", group.size()}}),
                                  {.tensor = {{"0", Colwise()}, {"2", Rowwise()}}});
            const at::Tensor middle = net->forward(values({4, 6}, 1));
            deed();
            net->forward(middle).square().mean().backward();
          }};
}

// Gradients of `up` and `first` need the ranks of tp after the hook of the output of `up`.
struct ThreeLayersImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = up(first(x));
    if (deed) y.register_hook([deed = deed](const at::Tensor&) { deed(); });
    return down(torch::relu(y));
  }
  Deed deed;  // in backward(), unless null
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 6));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 12));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(12, 6));
};
TORCH_MODULE(ThreeLayers);

ParallelPlan parallel_plan(const ThreeLayers& /*model*/) {
  return {.tensor = {{"up", Colwise()}, {"down", Rowwise()}}};
}

ParallelStep step_with_backward() {
  return {3, [](const Group& group, const Deed& deed) {
            ThreeLayers model;
            auto tp = parallelize(model, Mesh(group, {{"tp", group.size()}}));
            model->deed = deed;
            model->forward(values({4, 6}, 1)).square().mean().backward();
          }};
}

ParallelStep step_of_experts() {
  return {3, [](const Group& group, const Deed& deed) {
            models::MoeOptions options{.gpt = small_gpt(2, /*bias=*/false)};
            options.mixture.experts = 6;
            models::Moe model(options);
            auto moe = parallelize(model, Mesh(group, {{"ep", group.size()}}));
            const auto block = [&](std::size_t number, const at::Tensor& x) {
              return model->transformer->h[number]->as<models::MoeBlockImpl>()->forward(x).output;
            };
            at::Tensor x = model->transformer->wte(TokenBatch(group.rank()).ids);
            x = block(0, x);
            deed();
            block(1, x).square().mean().backward();
          }};
}

ParallelStep sequences(ContextMethod method) {
  return {3, [method](const Group& group, const Deed& deed) {
            models::Gpt model(small_gpt());
            auto cp = parallelize(model, Mesh(group, {{"cp", group.size()}}), {.context = method});
            const auto block = [&](std::size_t number, const at::Tensor& x) {
              return model->transformer->h[number]->as<models::GptBlockImpl>()->forward(x);
            };
            at::Tensor x = model->transformer->wte(cp.cut({TokenBatch(1).ids})[0]);
            x = block(0, x);
            deed();
            x = block(1, x);
            x.square().mean().backward();
            (void)number_of(x.mean());
          }};
}

ParallelStep step_of_stages() {
  return {3, [](const Group& group, const Deed& deed) {
            auto model = blocks(3);
            std::vector<Stage> all = split(model, even_points(3, 3));
            Stage& own = all[static_cast<std::size_t>(group.rank())];
            own.forward = [inner = own.forward, deed, calls = 0](const Tensors& inputs) mutable {
              if (++calls == 3) deed();
              return inner(inputs);
            };
            Pipeline pipeline(all, plan::make_schedule("1f1b", {.stages = 3, .micro_batches = 6}),
                              group, squared_error);
            const PipedBatch batch = piped_batch(12, 1);
            (void)pipeline.step(batch.inputs, batch.targets);
          }};
}

// Two steps of a Gpt, or of a Moe if there is an axis ep.
ParallelStep on_mesh(const std::string& first, const std::string& second) {
  const std::vector<MeshAxis> axes{{first, 2}, {second, 2}};
  const bool has_experts = first == "ep" || second == "ep";
  const auto run = [=](Group world, const Deed& deed) {
    int calls = 0;
    const Composition how{.axes = axes, .micro_batches = 3, .before_forward = [&] {
                            if (++calls == 2) deed();
                          }};
    const auto step_twice = [](auto composed) {
      const TokenBatch batch(1, 6);
      for (int step = 0; step < 2; ++step) (void)composed.step(batch.ids, batch.targets);
    };
    if (has_experts)
      step_twice(composed(std::move(world), moe_of(1, at::kFloat), how));
    else
      step_twice(composed(std::move(world), how, at::kFloat));
  };
  return {4, run, /*names_the_failed_rank=*/false};
}

// A step, and the rank that fails in it.
struct FailingStep {
  ParallelStep step;
  int rank = 0;
};

struct FailingSteps {
  std::string name;
  std::vector<FailingStep> steps;  // run at the same time
};

void PrintTo(const FailingSteps& what, std::ostream* out) { *out << what.name; }

std::vector<FailingStep> each_rank(const ParallelStep& step) {
  std::vector<FailingStep> all;
  for (int rank = 0; rank < step.ranks; ++rank) all.push_back({step, rank});
  return all;
}

// Runs on one rank. The failing rank gets its own exception.
void expect_error_of_others(const FailingStep& what, const RankRendezvous& place, int rank,
                            const Deed& deed) {
  try {
    what.step.run(
        place.join(rank), rank == what.rank ? deed : [] {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(rank, what.rank) << error.what();
    const std::string text = error.what();
    if (what.step.names_the_failed_rank)
      expect_contains(text, "rank " + std::to_string(what.rank));
    else
      EXPECT_TRUE(text.find("rank ") != std::string::npos ||
                  text.find("ranks ") != std::string::npos)
          << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  } catch (const NoRoom& error) {
    EXPECT_EQ(rank, what.rank);
    EXPECT_STREQ(error.what(), "no room");
  }
}

// Expects that the failing rank reached its deed, and caught the exception that it threw.
void expect_failed(RankProcesses& processes, int rank, WayToFail how) {
  if (how == WayToFail::computes_for_ever) processes.kill(rank, SIGKILL);
  const RankResult result = processes.wait(rank, rank_limit);
  if (how == WayToFail::throws)
    EXPECT_TRUE(result.ok()) << "rank " << rank << ": " << result;
  else
    EXPECT_TRUE(result.signal == SIGKILL && !result.overdue) << "rank " << rank << ": " << result;
}

void expect_others_told(const std::vector<FailingStep>& steps, WayToFail how, Duration timeout) {
  const Deed deed = [how] { fail_by(how); };
  std::list<RankRendezvous> places;
  std::list<RankProcesses> all;
  for (const FailingStep& one : steps) {
    const RankRendezvous& place = places.emplace_back(BackendKind::shm, one.step.ranks, timeout);
    all.emplace_back(one.step.ranks,
                     [&](int rank) { expect_error_of_others(one, place, rank, deed); });
  }
  auto one = steps.begin();
  for (RankProcesses& processes : all) {
    for (int rank = 0; rank < one->step.ranks; ++rank)
      if (rank != one->rank)
        EXPECT_TRUE(processes.wait(rank, rank_limit).ok())
            << "rank " << rank << " of step " << one - steps.begin();
    expect_failed(processes, one++->rank, how);
  }
}

class KilledRank : public testing::TestWithParam<FailingSteps> {};

TEST_P(KilledRank, IsNamed) {
  expect_others_told(GetParam().steps, WayToFail::is_killed, std::chrono::minutes(1));
}

INSTANTIATE_TEST_SUITE_P(
    Of, KilledRank,
    testing::Values(FailingSteps{"layers", each_rank(step_of_layers())},
                    FailingSteps{"experts", each_rank(step_of_experts())},
                    FailingSteps{"rings", each_rank(sequences(ContextMethod::ring))},
                    FailingSteps{"ulysses", each_rank(sequences(ContextMethod::ulysses))},
                    FailingSteps{"stages", each_rank(step_of_stages())},
                    FailingSteps{"stages_and_layers", each_rank(on_mesh("pp", "tp"))},
                    FailingSteps{"other_meshes",
                                 {{on_mesh("pp", "ep"), 1},
                                  {on_mesh("cp", "tp"), 2},
                                  {on_mesh("pp", "cp"), 3},
                                  {on_mesh("ep", "cp"), 0},
                                  {on_mesh("ep", "tp"), 3}}}),
    [](const auto& info) { return info.param.name; });

class ThrowingRank : public testing::TestWithParam<FailingSteps> {};

// Without stages, the other ranks detect the failure only when the failed rank ends.
TEST_P(ThrowingRank, IsNamed) {
  expect_others_told(GetParam().steps, WayToFail::throws, std::chrono::minutes(1));
}

INSTANTIATE_TEST_SUITE_P(Of, ThrowingRank,
                         testing::Values(FailingSteps{"layers", each_rank(step_of_layers())},
                                         FailingSteps{"stages", each_rank(step_of_stages())},
                                         FailingSteps{"others",
                                                      {{step_with_backward(), 1},
                                                       {step_of_experts(), 1},
                                                       {sequences(ContextMethod::ring), 1},
                                                       {sequences(ContextMethod::ulysses), 1},
                                                       {on_mesh("cp", "tp"), 1},
                                                       {on_mesh("ep", "cp"), 2}}}),
                         [](const auto& info) { return info.param.name; });

TEST(RankThatComputesForEver, IsNamed) {
  constexpr WayToFail how = WayToFail::computes_for_ever;
  expect_others_told(each_rank(step_of_stages()), how, std::chrono::seconds(2));
  expect_others_told(
      {{step_of_layers(), 1}, {step_of_experts(), 1}, {sequences(ContextMethod::ring), 1}}, how,
      std::chrono::seconds(2));
}

TEST(RankThatComputesForEver, IsNamedOnMeshes) {
  expect_others_told({{on_mesh("pp", "tp"), 1}, {on_mesh("pp", "ep"), 2}, {on_mesh("ep", "cp"), 3}},
                     WayToFail::computes_for_ever, std::chrono::seconds(8));
}

// A stage that throws notifies the other ranks before its rank ends.
TEST(StageOfAMesh, ThatThrowsIsNamedOnEveryRank) {
  std::vector<FailingStep> steps = each_rank(on_mesh("pp", "tp"));
  steps.insert(steps.end(),
               {{on_mesh("pp", "ep"), 0}, {on_mesh("pp", "ep"), 3}, {on_mesh("pp", "cp"), 1}});
  for (const FailingStep& one : steps)
    run_group(
        BackendKind::shm, one.step.ranks,
        [&](Group world) {
          const int rank = world.rank();
          try {
            one.step.run(std::move(world), [&] {
              if (rank == one.rank) throw NoRoom();
            });
            ADD_FAILURE() << "no error";
          } catch (const Aborted& error) {
            EXPECT_NE(rank, one.rank);
            expect_contains(error.what(), "F1 of the pipeline failed: no room");
          } catch (const NoRoom& error) {
            EXPECT_EQ(rank, one.rank);
            EXPECT_STREQ(error.what(), "no room");
          }
        },
        /*timeout=*/rank_limit);
}

// An exception in backward() on one rank ends the groups of all axes: no rank waits for its
// deadline, although every rank keeps its handle.

void backward_of_layers(const Mesh& mesh, bool throws, std::latch& end) {
  ThreeLayers model;
  const ParallelModel handle = parallelize(model, mesh);
  const int replica = mesh.group().rank() / 2;  // the ranks of tp have the same batch
  try {
    if (throws) model->deed = [] { throw std::runtime_error("mine"); };
    model->forward(values({4, 6}, replica)).square().mean().backward();
  } catch (...) {
    end.arrive_and_wait();
    throw;
  }
}

void backward_of_experts(const Mesh& mesh, bool throws, std::latch& end) {
  models::MoeOptions options{.gpt = small_gpt(2, /*bias=*/false)};
  options.mixture.experts = 4;
  models::Moe model(options);
  const ParallelModel handle = parallelize(model, mesh);
  const auto block = [&](std::size_t number, const at::Tensor& x) {
    return model->transformer->h[number]->as<models::MoeBlockImpl>()->forward(x).output;
  };
  try {
    at::Tensor x = block(0, model->transformer->wte(TokenBatch(mesh.group().rank()).ids));
    if (throws)
      x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("mine"); });
    block(1, x).square().mean().backward();
  } catch (...) {
    end.arrive_and_wait();
    throw;
  }
}

struct FailingBackward {
  std::string name;
  std::vector<MeshAxis> axes;
  void (*step)(const Mesh& mesh, bool throws, std::latch& end);
};

void PrintTo(const FailingBackward& one, std::ostream* out) { *out << one.name; }

class FailedBackwardOfMesh : public testing::TestWithParam<FailingBackward> {};

TEST_P(FailedBackwardOfMesh, EndsEveryRankAtOnce) {
  for (int failing = 0; failing < 4; ++failing) {
    std::latch end(4);
    const auto began = std::chrono::steady_clock::now();
    run_as_threads(
        4,
        [&](Group group) {
          const int rank = group.rank();
          const auto step = [&] {
            GetParam().step(Mesh(group, GetParam().axes), rank == failing, end);
          };
          if (rank == failing)
            EXPECT_EQ(message_of<std::runtime_error>(step), "mine");
          else
            expect_contains(message_of<Aborted>(step), "an exception ended backward()");
        },
        /*timeout=*/20s);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 10s) << "rank " << failing;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, FailedBackwardOfMesh,
    testing::Values(FailingBackward{"fsdp_tp", {{"fsdp", 2}, {"tp", 2}}, backward_of_layers},
                    FailingBackward{"dp_tp", {{"dp", 2}, {"tp", 2}}, backward_of_layers},
                    FailingBackward{"fsdp_ep", {{"fsdp", 2}, {"ep", 2}}, backward_of_experts},
                    FailingBackward{"dp_ep", {{"dp", 2}, {"ep", 2}}, backward_of_experts}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
