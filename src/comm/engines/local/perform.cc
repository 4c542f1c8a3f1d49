#include "comm/engines/local/perform.h"

#include "comm/backend/flat.h"
#include "comm/backend/reduction.h"
#include "comm/backend/stream_point.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace lockstep::local {
namespace {

void copy_flat(const at::Tensor& to, const at::Tensor& from) {
  if (to.const_data_ptr() != from.const_data_ptr()) flat(to).copy_(flat(from));
}

// Combines on the device of rank 0; copy_flat brings the result to the others.
at::Tensor combined(const std::vector<PostedCall>& calls) {
  const auto device = calls.front().input.device();
  std::vector<at::Tensor> values;
  for (const auto& call : calls) values.push_back(flat(call.input).to(device));
  return reduce_in_tree(values, calls.front().op);
}

// Returns the offset of part `part` of a flat operand.
std::int64_t part_begin(const std::vector<std::int64_t>& counts, std::int64_t all, int size,
                        int part) {
  std::int64_t begin = 0;
  for (int before = 0; before < part; ++before) begin += part_elements(counts, all, size, before);
  return begin;
}

at::Tensor part_of(const at::Tensor& tensor, const std::vector<std::int64_t>& counts, int size,
                   int part) {
  auto all = tensor.numel();
  return flat(tensor).narrow(0, part_begin(counts, all, size, part),
                             part_elements(counts, all, size, part));
}

void all_gather_into(const PostedCall& to, const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  for (int rank = 0; rank < size; ++rank)
    copy_flat(part_of(to.output, to.output_counts, size, rank), calls[rank].input);
}

void all_to_all(const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  for (int to = 0; to < size; ++to) {
    for (int from = 0; from < size; ++from) {
      copy_flat(part_of(calls[to].output, calls[to].output_counts, size, from),
                part_of(calls[from].input, calls[from].input_counts, size, to));
    }
  }
}

void reduce_scatter(const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  auto result = combined(calls);
  for (int rank = 0; rank < size; ++rank)
    copy_flat(calls[rank].output, part_of(result, calls[rank].input_counts, size, rank));
}

void scatter(const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  const auto& root = calls[calls.front().root];
  for (int rank = 0; rank < size; ++rank)
    copy_flat(calls[rank].output, part_of(root.input, {}, size, rank));
}

// Orders this thread's streams after the work that every rank had queued on its own.
void begin_after(const PostedCall& call) {
  if (call.after) call.after->precede_current();
}

// Blocks until the device has finished, so that work any thread queues from now on comes after it.
void finish_on_device(const PostedCall& call) {
  if (call.after) stream_point(call.input.defined() ? call.input : call.output)->wait();
}

void perform_now(const std::vector<PostedCall>& calls) {
  const auto& first = calls.front();
  switch (first.collective) {
    case Collective::all_reduce: {
      auto result = combined(calls);
      for (const auto& call : calls) copy_flat(call.output, result);
      return;
    }
    case Collective::reduce:
      return copy_flat(calls[first.root].output, combined(calls));
    case Collective::broadcast:
      for (const auto& call : calls) copy_flat(call.output, calls[first.root].input);
      return;
    case Collective::all_gather:
      for (const auto& call : calls) all_gather_into(call, calls);
      return;
    case Collective::gather:
      return all_gather_into(calls[first.root], calls);
    case Collective::reduce_scatter:
      return reduce_scatter(calls);
    case Collective::all_to_all:
      return all_to_all(calls);
    case Collective::scatter:
      return scatter(calls);
    case Collective::barrier:
    case Collective::send:
    case Collective::recv:
      return;
  }
}

}  // namespace

void perform(const std::vector<PostedCall>& calls) {
  at::NoGradGuard no_grad;
  for (const auto& call : calls) begin_after(call);
  perform_now(calls);
  for (const auto& call : calls) finish_on_device(call);
}

void perform(const PostedCall& send, const PostedCall& recv) {
  at::NoGradGuard no_grad;
  begin_after(send);
  begin_after(recv);
  copy_flat(recv.output, send.input);
  finish_on_device(send);
  finish_on_device(recv);
}

}  // namespace lockstep::local
