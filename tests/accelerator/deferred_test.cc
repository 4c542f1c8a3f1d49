// Modules of deferred() that get their memory on the simulated accelerator.
#include <lockstep/models/gpt.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "dispatch/lazy_storage.h"
#include "dispatch/thread_generator.h"
#include "support/accelerator/expectations.h"
#include "train/device.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include <vector>

namespace lockstep {
namespace {

using namespace test::accelerator;

class DeferredOnDevice : public AcceleratorTest {
 protected:
  void SetUp() override {
    AcceleratorTest::SetUp();
    dispatch::ThreadGenerator::prepare();
  }
};

TEST_F(DeferredOnDevice, ATensorHasItsValuesThereWhenTheyAreUsed) {
  const auto make = [] {
    const dispatch::ThreadGenerator generator(7);
    at::Tensor all = at::randn({32, 32});
    all.mul_(2);
    return std::vector<at::Tensor>{all, all[3], at::ones({2})};
  };
  const std::vector<at::Tensor> expected = make();
  const std::vector<at::Tensor> found = deferred(make, {.smallest = 64});
  dispatch::move_to(found, device(0));
  EXPECT_FALSE(dispatch::has_memory(found[0]));
  EXPECT_TRUE(dispatch::has_memory(found[2]));  // too small to be deferred
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].device(), device(0));
    EXPECT_TRUE(found[i].cpu().equal(expected[i])) << i;
  }
  found[0].fill_(1);
  EXPECT_TRUE(found[1].cpu().equal(at::ones({32})));  // still a view of it
}

TEST_F(DeferredOnDevice, OrdinaryTensorsThatShareMemoryShareItThere) {
  const at::Tensor all = at::arange(96, at::kFloat);
  const std::vector<at::Tensor> found = {
      all.narrow(0, 32, 64), all.narrow(0, 33, 8).view({4, 2}).t(),
      all.narrow(0, 48, 2).view(at::kInt), at::ones({3}), all.narrow(0, 32, 64).view({8, 8})[7]};
  std::vector<at::Tensor> expected;
  for (const at::Tensor& tensor : found) expected.push_back(tensor.clone());
  dispatch::move_to(found, device(0));
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].device(), device(0));
    EXPECT_EQ(found[i].strides(), expected[i].strides());
    EXPECT_TRUE(found[i].cpu().equal(expected[i])) << i;
  }
  EXPECT_LT(found[0].storage().nbytes(), all.nbytes());  // only the part that is used
  found[0].fill_(1);
  EXPECT_TRUE(found[1].cpu().equal(at::ones({2, 4})));
  EXPECT_TRUE(found[4].cpu().equal(at::ones({8})));
  EXPECT_EQ(found[3].storage().nbytes(), 3 * sizeof(float));
}

// A tensor with two names is passed twice.
TEST_F(DeferredOnDevice, DeferredTensorsShareMemoryThereAfterTheyWereUsed) {
  for (const bool has_memory : {false, true}) {
    const std::vector<at::Tensor> made = deferred(
        [] {
          const at::Tensor all = at::randn({32, 32});
          return std::vector<at::Tensor>{all, all[3], all};
        },
        {.smallest = 64});
    if (has_memory) dispatch::give_values(made[0]);
    dispatch::move_to(made, device(0));
    EXPECT_EQ(dispatch::has_memory(made[0]), has_memory);
    made[0].fill_(1);
    EXPECT_TRUE(made[1].cpu().equal(at::ones({32}))) << has_memory;
  }
}

// Returns the peak memory on a rank's device while the model was divided.
std::int64_t peak_of_dividing(bool is_deferred) {
  std::int64_t peak = 0;
  run_ranks(2, [&](const Group& group, c10::Device own) {
    const auto make = [] {
      return models::Gpt(models::GptOptions{
          .layers = 8, .heads = 2, .hidden_size = 128, .context_length = 16, .vocabulary = 32});
    };
    const dispatch::ThreadGenerator generator(7);
    models::Gpt model = is_deferred ? deferred(make) : make();
    (void)train::peak_memory(own);
    if (is_deferred)
      move_to(*model, own);
    else
      model->to(own);
    const Handle handle = fully_shard(model.ptr(), group, {.units = {"transformer.h.*"}});
    if (group.is_root()) peak = train::peak_memory(own)->allocated;
    for (const at::Tensor& parameter : handle.parameters()) EXPECT_EQ(parameter.device(), own);
  });
  expect_no_faults();
  return peak;
}

TEST_F(DeferredOnDevice, ADeferredModelIsNeverWholeOnADevice) {
  const std::int64_t whole = peak_of_dividing(false), part = peak_of_dividing(true);
  EXPECT_LT(part, whole / 2 + whole / 4);
  EXPECT_GT(part, whole / 4);
}

}  // namespace
}  // namespace lockstep
