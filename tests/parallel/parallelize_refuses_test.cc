// Errors of parallelize() and of a ParallelModel: one line on every rank, and nothing is changed.
#include <lockstep/global/tensor.h>
#include <lockstep/parallel/parallelize.h>

#include "parallel/own_net.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {

// Checks that the call throws the same message on every rank.
template <typename Thrown>
void expect_refused(const std::vector<MeshAxis>& axes, const std::string& message,
                    const std::function<void(const Mesh&)>& call) {
  run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
    const Mesh mesh(world, axes);
    EXPECT_EQ(message_of<Thrown>([&] { call(mesh); }), message);
    world.barrier().wait();
  });
}

TEST(ParallelizeRefuses, AxesThatTheModelSaysNothingAbout) {
  const auto plain = [](const Mesh& mesh) { (void)parallelize(PlainNet(), mesh); };
  const auto own = [](const Mesh& mesh) { (void)parallelize(OwnNet(), mesh); };
  expect_refused<InvalidArgument>(
      {{"data", 2}}, "parallelize: axis \"data\": known axes are pp, dp, ep, cp, fsdp, tp", plain);
  expect_refused<InvalidArgument>({{"tp", 2}},
                                  "parallelize: axis tp=2 needs a tensor plan: give .tensor, or "
                                  "parallel_plan(const Net&)",
                                  plain);
  expect_refused<InvalidArgument>(
      {{"pp", 2}, {"dp", 2}},
      "parallelize: axis pp=2 needs .pieces: give them in parallel_plan(const Net&)", plain);
  expect_refused<InvalidArgument>({{"cp", 2}},
                                  "parallelize: axis cp=2 needs a model of sequences: give .heads "
                                  "in parallel_plan(const Net&)",
                                  own);
  expect_refused<InvalidArgument>({{"ep", 2}},
                                  "parallelize: axis ep=2 needs a model with mixtures of experts "
                                  "(models::Mixture), found none",
                                  own);
}

TEST(ParallelizeRefuses, SizesThatDoNotDivide) {
  expect_refused<InvalidArgument>({{"pp", 4}}, "even_points: expected 4 blocks or more, found 3",
                                  [](const Mesh& mesh) { (void)parallelize(OwnNet(), mesh); });
  expect_refused<InvalidArgument>(
      {{"tp", 3}},
      "parallelize: transformer.h.0.attn.c_attn.weight: expected a number of heads divisible by "
      "tp, 3, found 4",
      [](const Mesh& mesh) { (void)parallelize(models::Gpt(composed_gpt()), mesh); });
  expect_refused<InvalidArgument>(
      {{"ep", 3}},
      "parallelize: transformer.h.0.moe: expected a number of experts divisible by ep, 3, found 4",
      [](const Mesh& mesh) { (void)parallelize(moe_of(0, at::kFloat), mesh); });
  expect_refused<InvalidArgument>({{"cp", 3}},
                                  "parallelize: context ulysses: expected a number of key heads "
                                  "divisible by cp x tp, 3, found 4; ring takes any",
                                  [](const Mesh& mesh) {
                                    (void)parallelize(models::Gpt(composed_gpt()), mesh,
                                                      {.context = ContextMethod::ulysses});
                                  });
}

// After an error the model is unchanged, so it trains with other options.
TEST(ParallelizeRefuses, PatternsThatNameNothingBeforeAnythingHasChanged) {
  run_group(BackendKind::local, 2, [](Group world) {
    const Mesh mesh(world, {{"fsdp", 2}});
    OwnNet net;
    const auto refused = [&](const ParallelOptions& options) {
      return message_of<InvalidArgument>([&] { (void)parallelize(net, mesh, options); });
    };
    EXPECT_NE(refused({.activation_checkpointing = {"blocks.*", "block.*"}})
                  .find("unknown pattern 'block.*'; did you mean"),
              std::string::npos);
    EXPECT_NE(refused({.activation_checkpointing = {"blocks.*"}, .shard = {.units = {"block.*"}}})
                  .find("block.*"),
              std::string::npos);
    EXPECT_EQ(refused({.micro_batches = 0}),
              "parallelize: expected micro_batches of at least 1, found 0");
    const at::Tensor view = net->in->weight.detach();
    EXPECT_NE(refused({.activation_checkpointing = {"blocks.*"}}).find("in.weight"),
              std::string::npos);
  });
  run_group(BackendKind::local, 2, [](Group world) {
    const Mesh mesh(world, {{"fsdp", 2}});
    OwnNet net;
    (void)message_of<InvalidArgument>([&] {
      (void)parallelize(net, mesh,
                        {.activation_checkpointing = {"blocks.*"}, .shard = {.units = {"no"}}});
    });
    ParallelModel model = parallelize(net, mesh, {.activation_checkpointing = {"blocks.*", "out"}});
    const OwnBatch batch(1);
    (void)model.step({batch.x}, {batch.y}, mean_square);
    (void)model.step({batch.x}, {batch.y}, mean_square);
    EXPECT_GT(model.checkpoints().recomputations, 0);
  });
}

// Activation checkpointing is applied after all checks, so the model trains with other options.
TEST(ParallelizeRefuses, OptionsOfCopiesBeforeAnythingHasChanged) {
  run_group(BackendKind::local, 2, [](Group world) {
    const Mesh copies(world, {{"dp", 2}}), shards(world, {{"fsdp", 2}});
    OwnNet net;
    const auto with = [](DistributedDataParallelOptions data, ShardOptions shard = {}) {
      return ParallelOptions{.activation_checkpointing = {"blocks.*"},
                             .shard = std::move(shard),
                             .data = std::move(data)};
    };
    EXPECT_EQ(
        message_of<InvalidArgument>(
            [&] { (void)parallelize(net, copies, with({.bucket_bytes = 0})); }),
        "DistributedDataParallel: bucket sizes must be positive, found 0, 1048576 and 1048576 "
        "bytes");
    EXPECT_NE(message_of<Mismatch>([&] {
                (void)parallelize(net, copies, with({.first_bucket_bytes = 1 + world.rank()}));
              }).find("first_bucket_bytes"),
              std::string::npos);
    EXPECT_NE(message_of<InvalidArgument>([&] {
                (void)parallelize(net, shards, with({}, {.reduce_in_step = true}));
              }).find("node_shared"),
              std::string::npos);
    ParallelModel model = parallelize(net, copies, with({}));
    const OwnBatch batch(1);
    (void)model.step({batch.x}, {batch.y}, mean_square);
    EXPECT_EQ(model.checkpoints().recomputations, 3);
  });
}

// The error is found before the weight is sharded, so the model trains with other options.
TEST(ParallelizeRefuses, UnitsThatDivideAFusedWeightBeforeItIsCut) {
  run_group(BackendKind::local, 4, [](Group world) {
    const Mesh mesh(world, {{"fsdp", 2}, {"tp", 2}});
    models::Gpt gpt(composed_gpt());
    const std::string weight = "transformer.h.0.attn.c_attn.weight";
    for (const std::string& pattern : {weight, std::string("transformer.h.*.attn.c_attn.*")}) {
      EXPECT_EQ(message_of<InvalidArgument>([&] {
                  (void)parallelize(gpt, mesh,
                                    {.activation_checkpointing = {"transformer.h.*"},
                                     .shard = {.units = {pattern}}});
                }),
                "parallelize: " + weight +
                    ": fully_shard() would split its 3 parts over several units; list its module "
                    "in .shard.units or the plan's .blocks");
      for (const at::Tensor& parameter : gpt->parameters()) {
        EXPECT_FALSE(is_global(parameter));
        EXPECT_TRUE(parameter.is_leaf() && parameter.numel() > 0);
      }
    }
    ParallelModel model =
        parallelize(gpt, mesh, {.shard = {.units = {"transformer.h.*.attn.c_attn"}}});
    const TokenBatch batch(1, 4);
    (void)model.step({own_rows(model.data(), batch.ids)}, {own_rows(model.data(), batch.targets)});
    EXPECT_EQ(model.checkpoints().recomputations, 0);
    EXPECT_GT(model.clip_grad_norm(1e9), 0);
  });
}

// Each stage would have a different shard of the weight.
TEST(ParallelizeRefuses, UnitsThatDivideATiedWeightInTwoWaysBeforeItIsCut) {
  run_group(BackendKind::local, 4, [](Group world) {
    const Mesh mesh(world, {{"pp", 2}, {"fsdp", 2}});
    models::Gpt gpt(composed_gpt());
    EXPECT_EQ(message_of<InvalidArgument>(
                  [&] { (void)parallelize(gpt, mesh, {.shard = {.units = {"transformer.h.*"}}}); }),
              "parallelize: transformer.wte.weight is tied over stages 0 and 1, but their units "
              "shard it differently; list its module in .shard.units");
    ParallelModel model =
        parallelize(gpt, mesh, {.shard = {.units = {"transformer.h.*", "transformer.wte"}}});
    const TokenBatch batch(1, 4);
    (void)model.step({own_rows(model.data(), batch.ids)}, {own_rows(model.data(), batch.targets)});
    EXPECT_GT(model.clip_grad_norm(1e9), 0);
  });
}

// Experts are sharded along ep only.
TEST(ParallelizeRefuses, ATensorPlanForExpertsAloneBeforeAnythingIsCut) {
  for (const char* other : {"ep", "pp"})
    run_group(BackendKind::local, 4, [&](Group world) {
      const Mesh mesh(world, {{other, 2}, {"tp", 2}});
      models::Moe moe = moe_of(0, at::kFloat);
      TensorPlan plan = lockstep::parallel_plan(moe).tensor;
      plan.emplace_back("transformer.h.*.moe.up", Colwise());
      EXPECT_NE(message_of<InvalidArgument>([&] {
                  (void)parallelize(moe, mesh, {.tensor = plan});
                }).find("unknown pattern 'transformer.h.*.moe.up'"),
                std::string::npos);
      for (const at::Tensor& parameter : moe->parameters()) EXPECT_FALSE(is_global(parameter));
      EXPECT_TRUE(parallelize(moe, mesh).is_attached());
    });
}

TEST(ParallelizeRefuses, OptionsThatPartsCannotShare) {
  const auto hook = [](const Mesh& mesh) {
    (void)parallelize(OwnNet(), mesh, {.data = {.hook = average_hook()}});
  };
  const auto ignored = [](const Mesh& mesh) {
    (void)parallelize(OwnNet(), mesh, {.data = {.ignored = {"in"}}});
  };
  expect_refused<InvalidArgument>({{"pp", 2}, {"dp", 2}},
                                  "parallelize: .data.hook: expected a mesh without pp and a model "
                                  "without mixtures of experts, "
                                  "whose parts would share one hook, found pp=2, dp=2",
                                  hook);
  expect_refused<InvalidArgument>(
      {{"dp", 2}, {"tp", 2}},
      "parallelize: .data.ignored: expected a mesh of pp, dp and fsdp and a model without mixtures "
      "of experts, found dp=2, tp=2",
      ignored);
  expect_refused<InvalidArgument>({{"fsdp", 2}},
                                  "parallelize: .shard.ignored: expected a mesh of pp, dp and fsdp "
                                  "and a model without mixtures "
                                  "of experts, found fsdp=2 and a model with mixtures",
                                  [](const Mesh& mesh) {
                                    (void)parallelize(moe_of(0, at::kFloat), mesh,
                                                      {.shard = {.ignored = {"transformer.wpe"}}});
                                  });
}

TEST(ParallelizeRefuses, RanksWithOtherModelsOrOptions) {
  run_group(BackendKind::local, 2, [](Group world) {
    const Mesh mesh(world, {{"dp", 2}});
    const auto refused = [&](const models::MlpOptions& shape, const ParallelOptions& options) {
      return message_of<Mismatch>([&] { (void)parallelize(models::Mlp(shape), mesh, options); });
    };
    const std::int64_t width = world.is_root() ? 4 : 5;
    EXPECT_NE(refused({.sizes = {3, width, 2}}, {}).find("layers.0.weight"), std::string::npos);
    EXPECT_NE(refused({.sizes = {3, 4, 2}}, {.micro_batches = 1 + world.rank()})
                  .find("micro_batches = 1"),
              std::string::npos);
  });
}

TEST(ParallelizeRefuses, BatchesThatAreNoneAndTheGroupsStayUsable) {
  for (const char* axis : {"dp", "pp", "tp"})
    run_group(BackendKind::local, 2, [&](Group world) {
      OwnNet net;
      ParallelModel model = parallelize(net, Mesh(world, {{axis, 2}}), {.micro_batches = 4});
      const std::string rank = axis == std::string("pp") ? " on rank 0" : "";
      const OwnBatch batch(1, 8), three(1, 3), none(1, 0);
      const auto refused = [&](const Tensors& inputs, const Tensors& targets) {
        return message_of<InvalidArgument>([&] { (void)model.step(inputs, targets, mean_square); });
      };
      EXPECT_EQ(refused({none.x}, {none.y}),
                "step(): inputs: expected a row for each of 4 micro-batches, found 0");
      EXPECT_EQ(refused({three.x}, {three.y}),
                "step(): inputs: expected a row for each of 4 micro-batches, found 3");
      EXPECT_EQ(refused({}, {batch.y}), "step(): inputs: expected tensors" + rank + ", found none");
      EXPECT_EQ(refused({batch.x}, {three.y}),
                "step(): targets: expected a row for each of 4 micro-batches, found 3");
      EXPECT_NE(refused({batch.x.clone().requires_grad_()}, {batch.y}).find("pass detach()"),
                std::string::npos);
      EXPECT_EQ(message_of<InvalidArgument>(
                    [&] { (void)model.evaluate({none.x}, {none.y}, mean_square); }),
                "evaluate(): inputs: expected a row for each of 4 micro-batches, found 0");
      EXPECT_EQ(message_of<InvalidArgument>([&] { (void)model.step({batch.x}, {batch.y}); }),
                "step(): the loss must not be empty: pass one, or set ParallelPlan::loss in "
                "parallel_plan(const Net&)");
      (void)model.step({batch.x}, {batch.y}, mean_square);
      EXPECT_GT(model.clip_grad_norm(1e9), 0);
    });
}

TEST(ParallelizeRefuses, AModelWithoutOneForwardInStep) {
  auto model = std::make_shared<PlainNetImpl>();
  ParallelModel handle = parallelize(model, Mesh(Group(), {{"dp", 1}}), ParallelPlan());
  const OwnBatch batch(1);
  EXPECT_EQ(
      message_of<InvalidArgument>([&] { (void)handle.step({batch.x}, {batch.y}, mean_square); }),
      "step(): the model has no single forward() of tensors: set .pieces or .forward in "
      "parallel_plan(const Net&)");
}

TEST(ParallelizeRefuses, AnUnattachedModel) {
  ParallelModel model;
  EXPECT_NE(
      message_of<InvalidArgument>([&] { (void)model.data(); }).find("not attached to a module"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep::test
