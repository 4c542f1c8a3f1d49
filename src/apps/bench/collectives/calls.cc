#include "apps/bench/collectives/calls.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <utility>

namespace lockstep::apps {

MeasuredCalls::MeasuredCalls(Group group, Collective op, std::int64_t bytes, Memory memory)
    : group_(std::move(group)), op_(op), bytes_(bytes), memory_(memory) {
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

void MeasuredCalls::refill() {
  for (at::Tensor* tensor : {&input_, &output_})
    if (tensor->defined()) tensor->fill_(1);
}

// One value for all, or one for each rank's part; undefined where the output means nothing.
at::Tensor MeasuredCalls::expected_output() const {
  int size = group_.size();
  bool root = group_.is_root();
  switch (op_) {
    case Collective::barrier:
      return {};
    case Collective::all_gather:
    case Collective::all_to_all:
      return at::arange(1, size + 1, at::kFloat).unsqueeze(1);
    case Collective::gather:
      return root ? at::arange(1, size + 1, at::kFloat).unsqueeze(1) : at::Tensor();
    case Collective::broadcast:
    case Collective::scatter:
      return at::ones({1, 1}, at::kFloat);
    case Collective::reduce:
      if (!root) return {};
      [[fallthrough]];
    default:
      return at::full({1, 1}, size * (size + 1) / 2, at::kFloat);
  }
}

void MeasuredCalls::check_result() {
  if (input_.defined()) input_.fill_(group_.rank() + 1);
  call();
  at::Tensor expected = expected_output();
  bool right =
      !expected.defined() || output_.view({expected.size(0), -1}).eq(expected).all().item<bool>();
  group_.barrier().wait();  // before a rank refills what all share
  if (!right)
    throw Error(formatted("{} of {} bytes gave another result than the expected one",
                          lockstep::name_of(op_), bytes_));
}

}  // namespace lockstep::apps
