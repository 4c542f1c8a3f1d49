#include "apps/bench/collectives/calls.h"

#include "base/format.h"
#include "comm/backend/accelerator.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/device.h>

#include <ATen/ops/empty.h>

#include <span>
#include <utility>

namespace lockstep::apps {

MeasuredCalls::MeasuredCalls(Group group, Collective op, std::int64_t bytes, Memory memory,
                             c10::Device device)
    : group_(std::move(group)), op_(op), bytes_(bytes), memory_(memory), device_(device) {
  std::int64_t whole = bytes / static_cast<std::int64_t>(sizeof(float)),
               part = whole / group_.size();
  bool root = group_.is_root();
  switch (op) {
    case Collective::all_gather:
      output_ = make(whole);
      input_ = memory == Memory::node_shared ? output_.narrow(0, part * group_.rank(), part)
                                             : make(part);
      break;
    case Collective::reduce_scatter:
      input_ = make(whole), output_ = make(part);
      break;
    case Collective::all_to_all:
      input_ = make(whole), output_ = make(whole);
      break;
    case Collective::gather:
      input_ = make(part);
      if (root) output_ = make(whole);
      break;
    case Collective::scatter:
      output_ = make(part);
      if (root) input_ = make(whole);
      break;
    case Collective::barrier:
      break;
    default:
      input_ = output_ = make(whole);
  }
}

at::Tensor MeasuredCalls::make(std::int64_t count) {
  auto options = at::TensorOptions().dtype(at::kFloat);
  switch (memory_) {
    case Memory::arena:
      return group_.empty_shared({count}, options);
    case Memory::node_shared:
      return group_.empty_node_shared({count}, options);
    case Memory::device:
      return at::empty({count}, options.device(device_));
    default:
      return at::empty({count}, options);
  }
}

void MeasuredCalls::call() {
  switch (op_) {
    case Collective::all_reduce:
      return group_.all_reduce(output_).wait();
    case Collective::reduce:
      return group_.reduce(output_).wait();
    case Collective::broadcast:
      return group_.broadcast(output_).wait();
    case Collective::all_gather:
      return group_.all_gather(output_, input_).wait();
    case Collective::reduce_scatter:
      return group_.reduce_scatter(output_, input_).wait();
    case Collective::all_to_all:
      return group_.all_to_all(output_, input_).wait();
    case Collective::gather:
      return group_.gather(output_, input_).wait();
    case Collective::scatter:
      return group_.scatter(output_, input_).wait();
    default:
      return group_.barrier().wait();
  }
}

void MeasuredCalls::finish() {
  if (memory_ == Memory::device) StreamPoint(device_).wait();
}

// A barrier always blocks the host.
bool MeasuredCalls::runs_on_streams() const {
  return memory_ == Memory::device && op_ != Collective::barrier && has_streams(group_);
}

std::int64_t MeasuredCalls::measured_call() {
  if (is_rooted(op_)) group_.barrier().wait();
  auto start = Clock::now();
  call();
  finish();
  return (Clock::now() - start).count();
}

std::int64_t MeasuredCalls::mean_in_stream_order(int calls) {
  auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  finish();
  return (Clock::now() - start).count() / calls;
}

std::vector<std::int64_t> MeasuredCalls::run(int uncounted, int calls) {
  refill();
  for (int i = 0; i < uncounted; ++i) (void)measured_call();
  if (runs_on_streams()) return {mean_in_stream_order(calls)};
  std::vector<std::int64_t> times(static_cast<std::size_t>(calls));
  for (std::int64_t& time : times) time = measured_call();
  return times;
}

void MeasuredCalls::refill() {
  for (at::Tensor* tensor : {&input_, &output_})
    if (tensor->defined()) tensor->fill_(1);
}

void MeasuredCalls::check_result() {
  CheckedCall checked{.op = op_,
                      .rank = group_.rank(),
                      .ranks = group_.size(),
                      .whole = bytes_ / static_cast<std::int64_t>(sizeof(float))};
  refill();
  group_.barrier().wait();  // before a rank fills shared memory
  if (input_.defined()) {
    const at::Tensor values = input_.cpu();  // not a copy, unless the input is on a device
    fill_input({values.mutable_data_ptr<float>(), static_cast<std::size_t>(values.numel())},
               group_.rank());
    input_.copy_(values);
  }
  call();
  if (has_output(checked)) {
    const at::Tensor output = output_.cpu();
    const std::span values(output.const_data_ptr<float>(),
                           static_cast<std::size_t>(output.numel()));
    if (auto wrong = first_wrong(checked, values))
      throw Error(formatted(
          "{} of {} bytes on {} tensors: rank {}: expected {} at element {}, found {}",
          lockstep::name_of(op_), bytes_, apps::name_of(memory_), checked.rank,
          output_value(checked, *wrong), *wrong, values[static_cast<std::size_t>(*wrong)]));
  }
  group_.barrier().wait();  // before a rank refills shared memory
}

}  // namespace lockstep::apps
