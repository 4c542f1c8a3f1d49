#include "comm/engines/mpi/operation.h"

#include <lockstep/base/error.h>

#include "comm/backend/reduction.h"
#include "comm/kernels/combine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <utility>

namespace lockstep::mpi {
namespace {

std::byte* memory_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
}

// Returns true if the smaller operand lies at this rank's place in the larger one.
bool lies_in_place(const PostedCall& call, const std::byte* input, const std::byte* output,
                   int rank, int size) {
  if (input == nullptr || output == nullptr) return false;
  std::int64_t begin = 0;
  if (call.output_counts.empty()) {
    bool gathers = call.collective != Collective::scatter;
    const auto& whole = gathers ? call.output : call.input;
    begin = whole.numel() / size * rank;
  }
  for (int before = 0; before < rank && !call.output_counts.empty(); ++before)
    begin += call.output_counts[before];
  begin *= static_cast<std::int64_t>(call.input.element_size());
  return call.collective == Collective::scatter ? output == input + begin : input == output + begin;
}

Plan plan_of(const PostedCall& call, bool in_own_part, int rank, int size) {
  return make_plan(
      {.collective = call.collective,
       .root = call.root,
       .rank = rank,
       .size = size,
       .element_bytes = call.dtype ? static_cast<std::int64_t>(lockstep::bytes_of(*call.dtype)) : 1,
       .elements = call.elements,
       .input_counts = call.input_counts,
       .output_counts = call.output_counts,
       .in_own_part = in_own_part});
}

// More ranks than the engine shm's arithmetic takes at once.
void sum_with_aten(const PostedCall& call, const std::vector<const std::byte*>& from, std::byte* to,
                   std::int64_t elements) {
  at::NoGradGuard no_grad;
  const auto& typed = call.input.defined() ? call.input : call.output;
  auto view = [&](const std::byte* memory) {
    return at::from_blob(const_cast<std::byte*>(memory), {elements},
                         at::TensorOptions(typed.scalar_type()));
  };
  std::vector<at::Tensor> values;
  for (const auto* memory : from) values.push_back(view(memory));
  view(to).copy_(reduce_in_tree(values, call.op));
}

}  // namespace

Operation::Operation(const PostedCall& call, int rank, int size)
    : call_(call), size_(size), input_(memory_of(call.input)), output_(memory_of(call.output)) {
  plan_ = plan_of(call_, lies_in_place(call, input_, output_, rank, size), rank, size);
  if (plan_.scratch_bytes > 0)
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(plan_.scratch_bytes);
}

void Operation::end(std::exception_ptr error) {
  is_over = true;
  if (error) return end_.set_exception(std::move(error));
  end_.set_value();
}

Kind Operation::kind() const {
  return is_message(call_.collective) ? Kind::message : Kind::collective;
}

bool Operation::needs(int rank) const {
  return !is_message(call_.collective) || call_.root == rank;
}

std::uint64_t Operation::bytes_for(int peer) const {
  return bytes_counted(call_.input_counts, peer);
}

std::uint64_t Operation::bytes_from(int peer) const {
  return bytes_counted(call_.output_counts, peer);
}

std::uint64_t Operation::bytes_counted(std::span<const std::int64_t> counts, int peer) const {
  if (call_.collective != Collective::all_to_all || counts.empty()) return 0;
  return static_cast<std::uint64_t>(counts[peer]) * lockstep::bytes_of(*call_.dtype);
}

std::span<std::byte> Operation::bytes_of(Piece piece) const {
  auto* base = piece.memory == Memory::input    ? input_
               : piece.memory == Memory::output ? output_
                                                : scratch_.get();
  return {base + piece.begin, static_cast<std::size_t>(piece.bytes)};
}

void Operation::copy(const Round& round) const {
  for (const auto& copy : round.copies) {
    auto from = bytes_of(copy.from);
    if (!from.empty()) std::memcpy(bytes_of(copy.to).data(), from.data(), from.size());
  }
}

void Operation::sum(const Round& round) const {
  if (!round.sum) return;
  std::vector<const std::byte*> from;
  for (auto piece : round.sum->from) from.push_back(bytes_of(piece).data());
  auto to = bytes_of(round.sum->to);
  auto element = static_cast<std::int64_t>(lockstep::bytes_of(*call_.dtype));
  auto elements = static_cast<std::int64_t>(to.size()) / element;
  if (size_ > kernels::max_ranks) return sum_with_aten(call_, from, to.data(), elements);
  std::byte* outputs[] = {to.data()};
  kernels::combine({.dtype = *call_.dtype,
                    .op = call_.op,
                    .inputs = from,
                    .outputs = outputs,
                    .elements = elements});
}

}  // namespace lockstep::mpi
