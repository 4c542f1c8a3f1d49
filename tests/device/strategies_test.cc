// Every strategy on a GPU that the ranks share, compared with one process on the CPU.

#include <lockstep/models/llama.h>
#include <lockstep/parallel/model_plans.h>

#include "device/devices.h"
#include "parallel/composition.h"

#include <ATen/Context.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace lockstep;

namespace {

constexpr int compared_steps = 6;

enum class Net { gpt, llama, moe };

struct OnDevice {
  test::Composition how;
  at::ScalarType dtype = at::kFloat;
  double tolerance = 1e-5;
  Net net = Net::gpt;
  double dropout = 0;
  bool uses_cudnn = true;  // for attention in 16 bits
};

std::string name_of(const testing::TestParamInfo<OnDevice>& info) {
  const char* model = "gpt_";
  if (info.param.net == Net::llama) model = "llama_";
  if (info.param.net == Net::moe) model = "moe_";
  return model + test::test_name_of(info.param.how) + "_" + toString(info.param.dtype) +
         (info.param.dropout > 0 ? "_dropout" : "") +
         (info.param.uses_cudnn ? "" : "_without_cudnn");
}

class StrategiesOnDevice : public test::DeviceTest, public testing::WithParamInterface<OnDevice> {
 protected:
  template <typename Make>
  static void compare(Group world, const Make& make) {
    const auto& [how, dtype, tolerance, net, dropout, uses_cudnn] = GetParam();
    at::globalContext().setSDPUseCuDNN(uses_cudnn);
    const bool is_low = dtype == at::kBFloat16;
    const auto expected = test::losses_of_one(make(is_low ? at::kFloat : dtype),
                                              is_low ? at::kFloat : dtype, compared_steps, 1, 1);
    auto model = make(dtype);
    model->to(test::first_device);
    test::Composed composed(model, std::move(world), how);
    const auto optimizer = test::parity_optimizer(dtype, composed.all().parameters());
    for (int step = 0; step < compared_steps; ++step) {
      const test::TokenBatch batch(step % 7, test::rows_of_step);
      composed.all().zero_grad();
      const double loss =
          composed.step(batch.ids.to(test::first_device), batch.targets.to(test::first_device));
      EXPECT_GT(composed.all().clip_grad_norm(1e9), 0);
      optimizer->step();
      if (dropout > 0)
        EXPECT_TRUE(std::isfinite(loss));
      else
        EXPECT_NEAR(loss, expected.at(step), tolerance * std::abs(expected.at(step))) << step;
    }
    for (const auto& parameter : composed.all().parameters())
      EXPECT_EQ(parameter.device(), test::first_device);
  }
};

TEST_P(StrategiesOnDevice, TrainAsOneProcess) {
  test::expect_on_device(test::BackendKind::shm, test::ranks_of(GetParam().how), [](Group world) {
    if (GetParam().net == Net::moe)
      return compare(std::move(world),
                     [](at::ScalarType dtype) { return test::moe_of(1.5, dtype); });
    if (GetParam().net == Net::llama)
      return compare(std::move(world), [](at::ScalarType dtype) {
        const models::LlamaOptions options{.heads = 4,
                                           .key_value_heads = 2,
                                           .hidden_size = 64,
                                           .context_length = 13,
                                           .vocabulary = 37};
        return test::made_alike([&] { return models::Llama(options); }, dtype);
      });
    compare(std::move(world), [](at::ScalarType dtype) {
      auto options = test::composed_gpt();
      if (dtype != at::kDouble)
        options.hidden_size = 64;  // CUDA's fused kernels support this head size
      options.dropout = GetParam().dropout;
      return test::made_alike([&] { return models::Gpt(options); }, dtype);
    });
  });
}

std::vector<OnDevice> cases() {
  std::vector<OnDevice> all;
  const std::vector<test::Composition> meshes = {
      {.axes = {{"dp", 2}}},
      {.axes = {{"fsdp", 2}}},
      {.axes = {{"fsdp", 2}}, .level = ShardLevel::optimizer},
      {.axes = {{"fsdp", 2}}, .checkpoints = true},
      {.axes = {{"tp", 2}}},
      {.axes = {{"tp", 2}}, .sequence = true},
      {.axes = {{"cp", 2}}},
      {.axes = {{"cp", 2}}, .context = ContextMethod::ulysses},
      {.axes = {{"pp", 2}}},
      {.axes = {{"pp", 2}}, .schedule = "zbv"},
      {.axes = {{"pp", 2}}, .checkpoints = true},
      {.axes = {{"pp", 2}, {"tp", 2}}},
      {.axes = {{"dp", 2}, {"tp", 2}}},
      {.axes = {{"fsdp", 2}, {"tp", 2}}},
      {.axes = {{"pp", 2}, {"fsdp", 2}}}};
  for (const auto& how : meshes) {
    all.push_back({.how = how});
    all.push_back({.how = how, .dtype = at::kDouble, .tolerance = 1e-10});
    all.push_back({.how = how, .dtype = at::kBFloat16, .tolerance = 2e-2});
  }
  for (auto dtype : {at::kFloat, at::kDouble})
    for (const std::vector<MeshAxis>& axes :
         {std::vector<MeshAxis>{{"dp", 2}}, {{"ep", 2}}, {{"fsdp", 2}}, {{"tp", 2}}, {{"pp", 2}}})
      all.push_back({.how = {.axes = axes, .micro_batches = 1},
                     .dtype = dtype,
                     .tolerance = dtype == at::kDouble ? 1e-9 : 1e-4,
                     .net = Net::moe});
  const std::vector<test::Composition> of_llama = {
      {.axes = {{"fsdp", 2}}},
      {.axes = {{"tp", 2}}, .sequence = true},
      {.axes = {{"cp", 2}}},
      {.axes = {{"cp", 2}}, .context = ContextMethod::ulysses},
      {.axes = {{"pp", 2}, {"tp", 2}}}};
  for (const auto& how : of_llama)
    for (auto dtype : {at::kFloat, at::kBFloat16})
      all.push_back({.how = how,
                     .dtype = dtype,
                     .tolerance = dtype == at::kFloat ? 1e-5 : 2e-2,
                     .net = Net::llama});
  for (const char* axis : {"dp", "tp", "cp"})
    all.push_back({.how = {.axes = {{axis, 2}}},
                   .dtype = at::kBFloat16,
                   .tolerance = 2e-2,
                   .uses_cudnn = false});
  for (const char* axis : {"dp", "fsdp", "tp", "pp"})
    all.push_back({.how = {.axes = {{axis, 2}}}, .dropout = 0.1});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shared, StrategiesOnDevice, testing::ValuesIn(cases()), name_of);

}  // namespace
