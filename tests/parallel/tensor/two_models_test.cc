// Two models on one mesh: the settings of one handle for attention, sequences, tables and plain
// tensors affect neither the other handle nor the caller's own tensors on that mesh.
#include <lockstep/parallel/parallelize.h>

#include "parallel/tensor/support.h"

#include <lockstep/global/tensor.h>

#include <optional>

namespace lockstep {
namespace {

using namespace test;

models::GptOptions gpt_with_heads(std::int64_t heads) {
  models::GptOptions options = small_gpt(1);
  options.heads = heads;
  return options;
}

// A Gpt and its handle.
struct Cut {
  Cut(const Mesh& mesh, const ParallelOptions& options, std::int64_t heads = 12)
      : model(made_alike([&] { return models::Gpt(gpt_with_heads(heads)); }, at::kDouble)),
        handle(parallelize(model, mesh, options)) {}

  Traffic traffic_of_step() {
    const TokenBatch batch(1);
    const Mesh tensors = tensors_of(*model);
    reset_traffic(tensors);
    handle.zero_grad();
    const Tensors cut = handle.cut({batch.ids, batch.targets});
    at::Tensor loss = model->loss(cut[0], cut[1]);
    loss.backward();
    auto plain = made_alike([&] { return models::Gpt(gpt_with_heads(model->options().heads)); },
                            at::kDouble);
    EXPECT_NEAR(number_of(loss), plain->loss(batch.ids, batch.targets).item<double>(), 1e-12);
    return traffic(tensors);
  }

  models::Gpt model;
  ParallelModel handle;
};

void expect_method(Cut& cut, ContextMethod method) {
  const Traffic moved = cut.traffic_of_step();
  EXPECT_EQ(moved.messages > 0, method == ContextMethod::ring);
  EXPECT_EQ(moved.all_to_alls > 0, method == ContextMethod::ulysses);
}

TEST(TwoModels, OnOneMeshComputeAttentionEachInTheirOwnWay) {
  using enum ContextMethod;
  for (auto [first, second] : {std::pair{ulysses, ring}, std::pair{ring, ulysses}})
    for (bool both_live : {true, false})
      run_as_threads(2, [&, first = first, second = second](Group group) {
        const Mesh mesh(group, {{"dp", 1}, {"cp", -1}});
        std::optional<Cut> one(std::in_place, mesh, ParallelOptions{.context = first});
        expect_method(*one, first);
        if (!both_live) one.reset();
        Cut other(mesh, {.context = second});
        expect_method(other, second);
        if (both_live) expect_method(*one, first);
      });
}

TEST(TwoModels, HeadsThatRanksDoNotDivideAreNoTroubleOfTheModelWithRings) {
  run_as_threads(2, [](Group group) {
    const Mesh mesh(group, {{"dp", 1}, {"cp", -1}});
    Cut one(mesh, {.context = ContextMethod::ulysses});
    Cut other(mesh, {.context = ContextMethod::ring}, /*heads=*/3);
    expect_method(other, ContextMethod::ring);
  });
}

TEST(TwoModels, SequenceParallelismOfOneMovesNothingInTheOther) {
  run_as_threads(4, [](Group group) {
    const auto moved_on = [&](const Mesh& mesh, bool sequence) {
      Cut cut(mesh, {.sequence_parallel = sequence});
      return cut.traffic_of_step();
    };
    for (const std::vector<MeshAxis>& axes :
         {std::vector<MeshAxis>{{"cp", 2}, {"tp", 2}}, {{"tp", 4}}})
      for (bool first : {true, false}) {
        const Traffic alone = moved_on(Mesh(group, axes), !first);
        const Mesh mesh(group, axes);
        (void)moved_on(mesh, first);
        const Traffic second = moved_on(mesh, !first);
        EXPECT_EQ(second.calls(), alone.calls()) << axes.size() << first;
        EXPECT_EQ(second.bytes, alone.bytes) << axes.size() << first;
      }
  });
}

TEST(TwoModels, TheCallersTensorsOnThatMeshStayStrict) {
  run_as_threads(2, [](Group group) {
    const auto make = [] { return models::Gpt(small_gpt(1)); };
    for (const char* axis : {"cp", "tp"}) {
      const Mesh mesh(group, {{"dp", 1}, {axis, -1}});
      auto first = made_alike(make, at::kDouble), second = made_alike(make, at::kDouble);
      const auto cut = parallelize(first, mesh);
      const at::Tensor own = distribute(values({4, 4}, 1), mesh.sub_mesh({axis}), {Shard(0)});
      const at::Tensor plain = values({4, 4}, 2);
      expect_contains(message_of<InvalidArgument>([&] { (void)(own + plain); }), "replicate_plain");
      set_global_options(mesh.sub_mesh({axis}),
                         {.replicate_unknown = true, .replicate_plain = true});
      const auto other = parallelize(second, mesh);
      EXPECT_TRUE(same_bits(full_tensor(own + plain), values({4, 4}, 1) + plain)) << axis;
    }
  });
}

struct StepImpl : torch::nn::Module {
  StepImpl() { layer = register_module("layer", torch::nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(layer(x)) + x; }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Step);

TEST(TwoModels, OneTakesWhatTheOtherGivesAndTensorsOfTheMesh) {
  run_as_threads(2, [](Group group) {
    const Mesh mesh(group, {{"dp", 1}, {"cp", -1}});
    Step first, second, of_first, of_second;
    for (auto [model, seed] : {std::pair{&first, 1}, {&of_first, 1}, {&second, 9}, {&of_second, 9}})
      fill_parameters(**model, seed);
    auto one = parallelize(first.ptr(), mesh, {.heads = 2}, {.context = ContextMethod::ulysses});
    auto other = parallelize(second.ptr(), mesh, {.heads = 2});
    const at::Tensor x = values({2, 6, 4}, 3);
    const at::Tensor of_mesh = distribute(x, mesh.sub_mesh({"cp"}), {Shard(1)});
    at::Tensor loss = (second->forward(first->forward(of_mesh)) * of_mesh).sum();
    loss.backward();
    at::Tensor expected = (of_second->forward(of_first->forward(x)) * x).sum();
    expected.backward();
    EXPECT_NEAR(number_of(loss), expected.item<double>(), 1e-5);
    expect_gradients_of(one, gradients_by_name(*of_first), 1e-6);
    expect_gradients_of(other, gradients_by_name(*of_second), 1e-6);
  });
}

}  // namespace
}  // namespace lockstep
