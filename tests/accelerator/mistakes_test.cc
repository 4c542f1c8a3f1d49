// Common mistakes of GPU programs. Each short program runs without the mistake, and the accelerator
// must report nothing; then it runs with the mistake, and the accelerator must report its kind.
#include "support/accelerator/communicator.h"
#include "support/accelerator/expectations.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

struct Mistake {
  std::string name;
  Fault fault;
  std::function<void(bool is_made)> program;
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

c10::Device first() { return device(0); }
c10::Stream main_stream() { return current_stream(first()); }
Actor number_of(const c10::Stream& stream) {
  return actor_of(stream.device_index(), static_cast<int>(stream.id()));
}

void order(const c10::Stream& before, const c10::Stream& after) {
  c10::Event event(before.device_type());
  event.record(before);
  after.wait(event);
}

// Launches a collective of one rank that reads and writes the tensor.
void reduce_on(const c10::Stream& stream, const at::Tensor& tensor) {
  const RankBytes part{.input = tensor.data_ptr(),
                       .input_bytes = tensor.nbytes(),
                       .output = tensor.data_ptr(),
                       .output_bytes = tensor.nbytes()};
  Communicator(1, "alone").launch(0, number_of(stream), "all_reduce", part, [](const auto&) {});
}

// Launches the call of one of two ranks, on a stream of its device.
void call_on(Communicator& communicator, int rank, const c10::Stream& stream,
             const std::string& signature = "all_reduce") {
  communicator.launch(rank, number_of(stream), signature, {}, [](const auto&) {});
}

void forget_the_wait_before_a_collective(bool is_made) {
  const auto side = new_stream(first());
  const auto bucket = at::ones({256}, first()) * 2;
  if (!is_made) order(main_stream(), side);
  reduce_on(side, bucket);
  order(side, main_stream());
}

void forget_the_wait_after_a_collective(bool is_made) {
  const auto side = new_stream(first());
  const auto bucket = at::ones({256}, first());
  order(main_stream(), side);
  reduce_on(side, bucket);
  if (!is_made) order(side, main_stream());
  (void)bucket.div(2);
  order(side, main_stream());
}

void record_the_event_too_early(bool is_made) {
  const auto side = new_stream(first());
  c10::Event event(side.device_type());
  auto bucket = at::ones({256}, first());
  if (is_made) event.record(main_stream());
  bucket.mul_(2);
  if (!is_made) event.record(main_stream());
  side.wait(event);
  reduce_on(side, bucket);
  order(side, main_stream());
}

void use_the_event_of_the_step_before(bool is_made) {
  const auto side = new_stream(first());
  c10::Event event(side.device_type());
  auto bucket = at::ones({256}, first());
  for (int step = 0; step < 2; ++step) {
    bucket.mul_(2);
    if (step == 0 || !is_made) event.record(main_stream());
    side.wait(event);
    reduce_on(side, bucket);
    order(side, main_stream());
  }
}

void make_another_stream_wait(bool is_made) {
  const auto side = new_stream(first()), other = new_stream(first());
  const auto bucket = at::ones({256}, first());
  order(main_stream(), is_made ? other : side);
  reduce_on(side, bucket);
  order(side, main_stream());
}

void wait_for_one_of_two_streams(bool is_made) {
  const auto side = new_stream(first()), other = new_stream(first());
  const auto bucket = at::ones({256}, first());
  order(main_stream(), side);
  order(main_stream(), other);
  reduce_on(side, bucket.narrow(0, 0, 128));
  reduce_on(other, bucket.narrow(0, 128, 128));
  order(side, main_stream());
  if (!is_made) order(other, main_stream());
  (void)bucket.sum();
  order(other, main_stream());
}

void gather_into_memory_that_is_still_read(bool is_made) {
  const auto side = new_stream(first());
  const auto weights = at::ones({256}, first());
  order(main_stream(), side);
  (void)(weights * 2);
  if (!is_made) order(main_stream(), side);
  reduce_on(side, weights);
  order(side, main_stream());
}

void write_beyond_the_own_part_of_a_bucket(bool is_made) {
  const auto side = new_stream(first());
  const auto bucket = at::ones({256}, first());
  order(main_stream(), side);
  reduce_on(side, bucket.narrow(0, 0, 128));
  bucket.narrow(0, is_made ? 127 : 128, 64).fill_(3);
  order(side, main_stream());
}

void free_a_bucket_that_a_collective_uses(bool is_made) {
  const auto side = new_stream(first());
  std::optional<at::Tensor> bucket = at::ones({256}, first());
  order(main_stream(), side);
  reduce_on(side, *bucket);
  if (!is_made) bucket->record_stream(side);
  bucket.reset();
  (void)at::full({256}, 3.F, first());
  order(side, main_stream());
}

void free_a_weight_that_another_stream_reads(bool is_made) {
  const auto side = new_stream(first());
  std::optional<at::Tensor> weight = at::ones({256}, first());
  order(main_stream(), side);
  {
    const c10::StreamGuard on(side);
    (void)(*weight * 2);
  }
  if (!is_made) order(side, main_stream());
  weight.reset();
  (void)at::full({256}, 3.F, first());
}

// An allocator may split the bucket's memory.
void free_a_bucket_before_a_smaller_allocation(bool is_made) {
  const auto side = new_stream(first());
  std::optional<at::Tensor> bucket = at::ones({3000}, first());
  order(main_stream(), side);
  reduce_on(side, *bucket);
  if (!is_made) bucket->record_stream(side);
  bucket.reset();
  (void)at::full({64}, 3.F, first());
  order(side, main_stream());
}

void use_bytes_beyond_a_block(bool is_made) {
  const auto tensor = at::ones({256}, first());
  const auto begin = Machine::get().memory().offset_of(tensor.const_data_ptr());
  Machine::get().launch(
      {.stream = number_of(main_stream()),
       .name = "kernel",
       .accesses = {{begin, begin + (is_made ? 1028 : 1024), AccessKind::write}}});
}

void keep_an_address_of_freed_memory(bool is_made) {
  std::optional<at::Tensor> tensor = at::ones({256}, first());
  const auto begin = Machine::get().memory().offset_of(tensor->const_data_ptr());
  if (is_made) tensor.reset();
  Machine::get().launch({.stream = number_of(main_stream()),
                         .name = "kernel",
                         .accesses = {{begin, begin + 1024, AccessKind::read}}});
}

void add_into_memory_that_is_not_zeroed(bool is_made) {
  const auto sum = is_made ? at::empty({256}, first()) : at::zeros({256}, first());
  sum.add_(1);
}

void read_on_the_host(bool is_made) {
  const auto tensor = at::ones({256}, first());
  const auto there = is_made ? tensor : tensor.cpu();
  volatile float value = static_cast<const float*>(there.const_data_ptr())[7];
  (void)value;
}

void refill_a_pinned_buffer_too_early(bool is_made) {
  const auto buffer = at::ones({256}, at::TensorOptions().pinned_memory(true));
  const auto there = buffer.to(first(), /*non_blocking=*/true);
  if (!is_made) main_stream().synchronize();
  static_cast<float*>(buffer.mutable_data_ptr())[0] = 2;
}

void read_a_pinned_buffer_too_early(bool is_made) {
  const auto buffer = at::empty({256}, at::TensorOptions().pinned_memory(true));
  buffer.copy_(at::ones({256}, first()), /*non_blocking=*/true);
  if (!is_made) main_stream().synchronize();
  volatile float value = static_cast<const float*>(buffer.const_data_ptr())[0];
  (void)value;
}

void bring_values_back_before_they_are_out(bool is_made) {
  const auto side = new_stream(first());
  const auto values = at::ones({256}, first());
  const auto buffer = at::empty({256}, at::TensorOptions().pinned_memory(true));
  order(main_stream(), side);
  {
    const c10::StreamGuard on(side);
    buffer.copy_(values, /*non_blocking=*/true);
  }
  if (!is_made) order(side, main_stream());
  (void)buffer.to(first(), /*non_blocking=*/true);
  order(side, main_stream());
}

void put_values_out_before_they_are_back(bool is_made) {
  const auto side = new_stream(first());
  const auto values = at::ones({256}, first());
  const auto buffer = at::ones({256}, at::TensorOptions().pinned_memory(true));
  at::Tensor back;
  {
    const c10::StreamGuard on(side);
    back = buffer.to(first(), /*non_blocking=*/true);
  }
  if (!is_made) order(side, main_stream());
  buffer.copy_(values, /*non_blocking=*/true);
  order(side, main_stream());
}

void destroy_an_event_in_a_new_thread(bool is_made) {
  std::optional<c10::Event> event(std::in_place, first().type());
  event->record(current_stream(device(1)));
  std::thread([&] {
    if (!is_made) c10::impl::VirtualGuardImpl(first().type()).setDevice(device(1));
    event.reset();
  }).join();
}

void index_out_of_range(bool is_made) {
  const auto rows = at::ones({4, 8}, first());
  const auto index = at::full({2}, is_made ? 9 : 3, at::TensorOptions(first()).dtype(at::kLong));
  (void)rows.index_select(0, index);
  main_stream().synchronize();
}

void launch_in_another_order_on_a_rank(bool is_made) {
  Communicator communicator(2, "world");
  const auto one = new_stream(device(0)), other = new_stream(device(1));
  call_on(communicator, 0, one, "all_reduce a");
  call_on(communicator, 0, one, "all_reduce b");
  call_on(communicator, 1, other, is_made ? "all_reduce b" : "all_reduce a");
  call_on(communicator, 1, other, is_made ? "all_reduce a" : "all_reduce b");
}

void launch_two_communicators_in_opposite_orders(bool is_made) {
  Communicator gathers(2, "gathers"), sums(2, "sums");
  call_on(gathers, 0, new_stream(device(0)));
  call_on(sums, 0, new_stream(device(0)));
  call_on(is_made ? sums : gathers, 1, new_stream(device(1)));
  call_on(is_made ? gathers : sums, 1, new_stream(device(1)));
}

void leave_out_a_collective_on_a_rank(bool is_made) {
  Communicator communicator(2, "world");
  const auto one = new_stream(device(0)), other = new_stream(device(1));
  call_on(communicator, 0, one);
  if (!is_made) call_on(communicator, 1, other);
  one.synchronize();
}

void exchange_messages_that_wait_for_each_other(bool is_made) {
  Communicator up(2, "up"), down(2, "down");
  const auto one = new_stream(device(0)), other = new_stream(device(1));
  call_on(up, 0, one);    // sends
  call_on(down, 1, one);  // receives
  call_on(is_made ? down : up, is_made ? 0 : 1, other);
  call_on(is_made ? up : down, is_made ? 1 : 0, other);
  one.synchronize();
}

std::vector<Mistake> mistakes() {
  return {
      {"NoWaitBeforeACollective", Fault::race, &forget_the_wait_before_a_collective},
      {"NoWaitAfterACollective", Fault::race, &forget_the_wait_after_a_collective},
      {"EventRecordedTooEarly", Fault::race, &record_the_event_too_early},
      {"EventOfTheStepBefore", Fault::race, &use_the_event_of_the_step_before},
      {"WaitOnAnotherStream", Fault::race, &make_another_stream_wait},
      {"WaitForOneOfTwoStreams", Fault::race, &wait_for_one_of_two_streams},
      {"GatherIntoMemoryThatIsRead", Fault::race, &gather_into_memory_that_is_still_read},
      {"WriteBeyondTheOwnPart", Fault::race, &write_beyond_the_own_part_of_a_bucket},
      {"FreedBucketOfACollective", Fault::reuse, &free_a_bucket_that_a_collective_uses},
      {"FreedWeightOfAnotherStream", Fault::reuse, &free_a_weight_that_another_stream_reads},
      {"FreedBucketBeforeASmallerAllocation", Fault::reuse,
       &free_a_bucket_before_a_smaller_allocation},
      {"BytesBeyondABlock", Fault::freed, &use_bytes_beyond_a_block},
      {"AddressOfFreedMemory", Fault::freed, &keep_an_address_of_freed_memory},
      {"SumInMemoryThatIsNotZeroed", Fault::uninitialised, &add_into_memory_that_is_not_zeroed},
      {"ReadOnTheHost", Fault::touch, &read_on_the_host},
      {"PinnedBufferRefilledTooEarly", Fault::touch, &refill_a_pinned_buffer_too_early},
      {"PinnedBufferReadTooEarly", Fault::touch, &read_a_pinned_buffer_too_early},
      {"PinnedValuesBackBeforeTheyAreOut", Fault::race, &bring_values_back_before_they_are_out},
      {"PinnedValuesOutBeforeTheyAreBack", Fault::race, &put_values_out_before_they_are_back},
      {"EventOfAnotherDeviceInANewThread", Fault::context, &destroy_an_event_in_a_new_thread},
      {"IndexOutOfRange", Fault::kernel, &index_out_of_range},
      {"OtherOrderOnARank", Fault::order, &launch_in_another_order_on_a_rank},
      {"OppositeOrdersOfCommunicators", Fault::order, &launch_two_communicators_in_opposite_orders},
      {"CollectiveLeftOutOnARank", Fault::stall, &leave_out_a_collective_on_a_rank},
      {"MessagesThatWaitForEachOther", Fault::stall, &exchange_messages_that_wait_for_each_other},
  };
}

class Mistakes : public AcceleratorTest, public testing::WithParamInterface<Mistake> {};

TEST_P(Mistakes, AreReportedUnderEverySchedule) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Machine::get().set(
        {.seed = seed, .lazy = seed % 2 == 0, .longest_idle = std::chrono::milliseconds(200)});
    for (const bool is_made : {false, true}) {
      GetParam().program(is_made);
      for (int i = 0; i < device_count; ++i) Machine::get().synchronize_device(i, "end");
      if (is_made)
        expect_fault(GetParam().fault);
      else
        expect_no_faults();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OfPrograms, Mistakes, testing::ValuesIn(mistakes()),
                         [](const auto& info) { return info.param.name; });

// Host waits are not faults, but they are counted.
TEST(HostWaits, OfAStepAreCountedByTheirCause) {
  auto& machine = Machine::get();
  const auto tensor = at::ones({16}, first());
  machine.reset_counts();
  (void)tensor.sum().item<float>();
  (void)tensor.nonzero();
  (void)tensor.cpu();
  main_stream().synchronize();
  c10::Event event(first().type());
  event.record(main_stream());
  event.synchronize();
  const std::map<std::string, int> expected{{"copy_ (to host)", 1},
                                            {"event.synchronize", 1},
                                            {"item", 1},
                                            {"nonzero", 1},
                                            {"stream.synchronize", 1}};
  EXPECT_EQ(machine.counts(0).synchronizations, expected);
}

}  // namespace
