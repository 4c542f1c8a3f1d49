#include "comm/shm/staging.h"

#include <cstring>
#include <utility>

namespace lockstep::shm {
namespace {

bool overlap(Buffer a, Buffer b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

}  // namespace

Staged::Staged(const Peers& peers, Buffer input, Buffer output, bool reads, bool writes)
    : arena_(peers.arena().get()) {
  if (reads) input_ = input;
  if (writes) output_ = output;
  Arena& arena = *arena_;
  if (input_.bytes > 0) {
    input_location_ = peers.locate(input_.data, input_.bytes);
    if (!input_location_.is_somewhere()) {
      input_block_ = arena.allocate(input_.bytes);
      std::memcpy(input_block_, input_.data, input_.bytes);
      input_location_ = peers.locate(input_block_, input_.bytes);
    }
  }
  if (output_.bytes == 0) return;
  output_location_ = peers.locate(output_.data, output_.bytes);
  if (output_location_.is_somewhere()) return;
  bool in_place = output_.data == input_.data && output_.bytes == input_.bytes;
  try {
    output_block_ = in_place ? input_block_ : arena.allocate(output_.bytes);
  } catch (...) {
    release();
    throw;
  }
  output_location_ = peers.locate(output_block_, output_.bytes);
}

Staged& Staged::operator=(Staged&& other) noexcept {
  if (this == &other) return *this;
  release();
  input_ = other.input_;
  output_ = other.output_;
  input_location_ = other.input_location_;
  output_location_ = other.output_location_;
  arena_ = other.arena_;
  input_block_ = std::exchange(other.input_block_, nullptr);
  output_block_ = std::exchange(other.output_block_, nullptr);
  return *this;
}

void Staged::take_out() {
  if (output_block_) std::memcpy(output_.data, output_block_, output_.bytes);
}

void Staged::release() {
  if (output_block_ && output_block_ != input_block_) arena_->free(output_block_);
  if (input_block_) arena_->free(input_block_);
  pin();
}

void Staged::pin() { input_block_ = output_block_ = nullptr; }

bool Staged::must_precede(Buffer later_input, Buffer later_output, bool same_lane) const {
  bool output_is_outside = output_block_ != nullptr;
  bool reads_ours = overlap(output_, later_input);
  if (same_lane) return output_is_outside && reads_ours;
  bool writes_ours =
      overlap(output_, later_output) || (input_block_ == nullptr && overlap(input_, later_output));
  return reads_ours || writes_ours;
}

}  // namespace lockstep::shm
