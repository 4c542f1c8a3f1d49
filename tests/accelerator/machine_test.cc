// The simulated accelerator itself: memory, streams, events, blocks and the faults that it reports.
#include "support/accelerator/expectations.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

using namespace lockstep::test::accelerator;

namespace {

class Accelerator : public AcceleratorTest {
 protected:
  c10::Device first_ = device(0);
  c10::Stream main_ = current_stream(first_);
  c10::Stream side_ = new_stream(first_);

  static void order(const c10::Stream& before, const c10::Stream& after) {
    c10::Event event(before.device_type());
    event.record(before);
    after.wait(event);
  }
};

TEST_F(Accelerator, ComputesWhatTheCpuComputes) {
  const auto values = at::arange(6, at::kFloat).view({2, 3});
  const auto there = values.to(device(1));
  EXPECT_EQ(there.device(), device(1));
  EXPECT_TRUE((there.matmul(there.t()) + 1).cpu().equal(values.matmul(values.t()) + 1));
}

TEST_F(Accelerator, ReportsHostCodeThatTouchesDeviceMemory) {
  const auto tensor = at::ones({6}, first_);
  volatile float value = static_cast<const float*>(tensor.const_data_ptr())[3];
  (void)value;
  expect_fault(Fault::touch, "host code touched device memory", "at byte 12");
}

TEST_F(Accelerator, ReportsAPinnedBufferThatIsUsedTooEarly) {
  const auto pinned = at::ones({4}, at::TensorOptions().pinned_memory(true));
  const auto there = pinned.to(first_, /*non_blocking=*/true);
  static_cast<float*>(pinned.mutable_data_ptr())[0] = 5;
  expect_fault(Fault::touch, "pinned memory", "copy_ (to device)");
  const auto back = at::empty({4}, at::TensorOptions().pinned_memory(true));
  back.copy_(there, /*non_blocking=*/true);
  volatile float value = static_cast<const float*>(back.const_data_ptr())[0];
  (void)value;
  expect_fault(Fault::touch, "pinned memory", "copy_ (to host)");
}

TEST_F(Accelerator, OpensPinnedMemoryAfterASynchronization) {
  const auto pinned = at::ones({4}, at::TensorOptions().pinned_memory(true));
  const auto there = pinned.to(first_, /*non_blocking=*/true);
  main_.synchronize();
  static_cast<float*>(pinned.mutable_data_ptr())[0] = 5;
  EXPECT_EQ(there.sum().item<float>(), 4);
}

TEST_F(Accelerator, RunsNothingBeforeAHostWaits) {
  const auto tensor = at::ones({4}, first_);
  c10::Event event(first_.type());
  event.record(main_);
  Machine::get().set({.lazy = true});
  EXPECT_EQ(Machine::get().counts(0).all_synchronizations(), 0);
  EXPECT_EQ(tensor.sum().item<float>(), 4);
  EXPECT_TRUE(event.query());
  EXPECT_EQ(Machine::get().counts(0).synchronizations.at("item"), 1);
}

TEST_F(Accelerator, AHostThatPollsSeesProgress) {
  const auto tensor = at::ones({4}, first_);
  c10::Event event(first_.type());
  event.record(main_);
  int polls = 1;
  while (!event.query()) ++polls;
  EXPECT_LT(polls, 100);
  EXPECT_EQ(Machine::get().counts(0).all_synchronizations(), 0);
}

TEST_F(Accelerator, ReportsAWriteWithoutOrder) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    auto tensor = at::ones({1000}, first_);
    {
      const c10::StreamGuard on(side_);
      tensor.add_(1);
    }
    expect_fault(Fault::race, "'add' on " + name_of_stream(static_cast<int>(side_.id())),
                 "'fill_' on sim:0/stream 0 wrote");
    side_.synchronize();
    main_.synchronize();
  }
}

TEST_F(Accelerator, AnEventOrdersAWrite) {
  auto tensor = at::ones({1000}, first_);
  order(main_, side_);
  {
    const c10::StreamGuard on(side_);
    tensor.add_(1);
  }
  order(side_, main_);
  EXPECT_EQ(tensor.sum().item<float>(), 2000);
}

// Writes to different bytes of one block do not conflict.
TEST_F(Accelerator, BytesBesideAWriteAreFree) {
  auto tensor = at::ones({8, 100}, first_);
  order(main_, side_);
  tensor.narrow(1, 0, 50).add_(1);
  {
    const c10::StreamGuard on(side_);
    tensor.narrow(1, 50, 50).add_(2);
  }
  expect_no_faults();
  {
    const c10::StreamGuard on(side_);
    tensor.narrow(1, 49, 2).add_(2);
  }
  expect_fault(Fault::race, "'add'");
  order(side_, main_);
}

TEST_F(Accelerator, ReportsABlockThatIsFreedWhileAnotherStreamUsesIt) {
  for (const bool is_recorded : {false, true}) {
    std::optional<at::Tensor> block = at::ones({1000}, first_);
    order(main_, side_);
    at::Tensor doubled;
    {
      const c10::StreamGuard on(side_);
      doubled = *block * 2;
      if (is_recorded) block->record_stream(side_);
    }
    block.reset();
    const auto other = at::full({1000}, 7.F, first_);
    if (!is_recorded) expect_fault(Fault::reuse, "'fill_'", "'mul'");
    order(side_, main_);
    EXPECT_EQ(doubled.sum().item<float>(), 2000);  // 'fill_' has waited
  }
}

TEST_F(Accelerator, ReportsMemoryThatNothingHasWritten) {
  const auto tensor = at::empty({16}, first_);
  const auto sum = tensor.sum();
  expect_fault(Fault::uninitialised, "'sum'");
}

TEST_F(Accelerator, ReportsAnOperationInPlaceOnMemoryThatNothingHasWritten) {
  at::empty({16}, first_).relu_();
  expect_fault(Fault::uninitialised, "'relu_'");
  const std::vector<at::Tensor> list{at::ones({16}, first_), at::empty({16}, first_)};
  at::_foreach_mul_(list, 2);
  expect_fault(Fault::uninitialised, "'mul'");  // LibTorch calls mul_() for each
  const auto half = at::empty({16}, first_);
  half.narrow(0, 0, 8).fill_(1);
  half.narrow(0, 0, 8).relu_();
  expect_no_faults();
  half.relu_();
  expect_fault(Fault::uninitialised, "'relu_'");
  auto filled = at::empty({16}, first_);
  filled.uniform_().relu_();
  auto out = at::empty({16}, first_);
  at::add_out(out, filled, filled);
  at::_foreach_zero_({at::empty({16}, first_)});
  expect_no_faults();
}

// A copy of such memory is no fault, but the values are not the zeros of new pages.
TEST_F(Accelerator, CopiesMemoryThatNothingHasWrittenAsNan) {
  const auto tensor = at::empty({16}, first_);
  tensor.narrow(0, 0, 8).fill_(1);
  const auto copy = tensor.clone().cpu();
  EXPECT_EQ(copy.narrow(0, 0, 8).sum().item<float>(), 8);
  EXPECT_TRUE(copy.narrow(0, 8, 8).isnan().all().item<bool>());
  EXPECT_TRUE(tensor.narrow(0, 0, 8).eq(1).all().item<bool>());
}

TEST_F(Accelerator, AddsUpMemoryThatNothingHasWrittenAsNan) {
  run_ranks(2, [](lockstep::Group group, c10::Device device) {
    const auto bucket = at::empty({16}, device);
    bucket.narrow(0, 0, 8).fill_(1);
    group.all_reduce(bucket).wait();
    const auto sums = bucket.cpu();
    EXPECT_EQ(sums.narrow(0, 0, 8).sum().item<float>(), 16);
    EXPECT_TRUE(sums.narrow(0, 8, 8).isnan().all().item<bool>());
  });
}

TEST_F(Accelerator, RefusesAnEventOfAnotherDevice) {
  c10::Event event(first_.type());
  event.record(main_);
  event.record(side_);
  EXPECT_THROW(event.record(current_stream(device(1))), c10::Error);
}

TEST_F(Accelerator, ReportsALaunchOnFreedMemory) {
  const std::size_t begin =
      Machine::get().memory().offset_of(at::ones({8}, first_).const_data_ptr());
  Machine::get().launch({.stream = actor_of(0, 0),
                         .name = "late kernel",
                         .accesses = {{begin, begin + 32, AccessKind::read}}});
  expect_fault(Fault::freed, "late kernel");
}

TEST_F(Accelerator, CopiesBetweenDevicesAreOrderedWithBoth) {
  auto here = at::ones({100}, first_);
  auto there = at::empty({100}, device(1));
  there.copy_(here);
  here.fill_(3);
  there.add_(1);
  EXPECT_EQ(there.sum().item<float>(), 200);
}

TEST_F(Accelerator, AnOutputThatDependsOnValuesBlocksTheHost) {
  const auto tensor = at::ones({5}, first_);
  expect_synchronizations_at_most(0, 0, [&] { (void)(tensor * 2).reshape({1, 5}).contiguous(); });
  Machine::get().reset_counts();
  EXPECT_EQ(tensor.nonzero().size(0), 5);
  EXPECT_EQ(Machine::get().counts(0).synchronizations.at("nonzero"), 1);
}

}  // namespace
