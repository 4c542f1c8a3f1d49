#include "comm/engines/shm/staging.h"

#include "comm/engines/shm/private_memory.h"

#include <cstring>
#include <utility>

namespace lockstep::shm {
namespace {

// Below this, two copies cost less than the kernel's way into another process.
constexpr std::size_t least_direct_bytes = 32 << 10;
// Below this, a tensor and its copies stay in the caches anyway.
constexpr std::size_t least_pipelined_bytes = 1 << 20;

// Nowhere for a buffer that must be staged.
Location find(const Peers& peers, Buffer buffer) {
  auto location = peers.locate(buffer.data, buffer.bytes);
  if (location.is_somewhere()) return location;
  bool direct = buffer.bytes >= least_direct_bytes && peers.share_private_memory() &&
                is_plain_memory(buffer.data);
  return direct ? peers.locate_private(buffer.data) : Location();
}

}  // namespace

bool is_staged(const Peers& peers, Buffer buffer) {
  return buffer.bytes > 0 && !find(peers, buffer).is_somewhere();
}

bool is_for_pipeline(const Peers& peers, Buffer tensor) {
  return tensor.bytes >= least_pipelined_bytes &&
         !peers.locate(tensor.data, tensor.bytes).is_somewhere();
}

Staged::Staged(const Peers& peers, Buffer input, Buffer output, bool reads, bool writes)
    : arena_(peers.arena().get()) {
  if (reads) input_ = input;
  if (writes) output_ = output;
  Arena& arena = *arena_;
  if (input_.bytes > 0) {
    input_location_ = find(peers, input_);
    if (!input_location_.is_somewhere()) {
      input_block_ = arena.allocate(input_.bytes);
      std::memcpy(input_block_, input_.data, input_.bytes);
      input_location_ = peers.locate(input_block_, input_.bytes);
    }
  }
  if (output_.bytes == 0) return;
  output_location_ = find(peers, output_);
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

void Staged::carry(Buffer input, Buffer output, bool reads, bool writes) {
  release();
  input_ = reads ? input : Buffer();
  output_ = writes ? output : Buffer();
  input_location_ = output_location_ = Location();
  carried_ = true;
}

void Staged::locate_input(const Peers& peers) {
  if (input_.bytes > 0) input_location_ = peers.locate(input_.data, input_.bytes);
}

Staged Staged::pipelined(const Peers& peers, Buffer tensor, std::size_t bytes) {
  Staged staged;
  staged.arena_ = peers.arena().get();
  staged.input_ = staged.output_ = tensor;
  staged.input_block_ = staged.output_block_ = staged.arena_->allocate(bytes);
  staged.output_location_ = peers.locate(staged.output_block_, bytes);
  staged.output_location_.is_pipeline = true;
  staged.input_location_ = staged.output_location_;
  return staged;
}

Staged& Staged::operator=(Staged&& other) noexcept {
  if (this == &other) return *this;
  release();
  input_ = other.input_;
  output_ = other.output_;
  input_location_ = other.input_location_;
  output_location_ = other.output_location_;
  carried_ = other.carried_;
  arena_ = other.arena_;
  input_block_ = std::exchange(other.input_block_, nullptr);
  output_block_ = std::exchange(other.output_block_, nullptr);
  return *this;
}

void Staged::copy_out() {
  if (output_block_ && !output_location_.is_pipeline)
    std::memcpy(output_.data, output_block_, output_.bytes);
}

void Staged::release() {
  if (output_block_ && output_block_ != input_block_) arena_->free(output_block_);
  if (input_block_) arena_->free(input_block_);
  leak();
}

void Staged::leak() { input_block_ = output_block_ = nullptr; }

bool Staged::must_precede(const Later& later) const {
  bool reads_ours = overlap(output_, later.input);
  bool writes_output = overlap(output_, later.output);
  if (later.same_channel)
    return delivers_late() ? reads_ours || writes_output : reads_ours && later.is_copied;
  bool is_copied = carried_ || input_block_ != nullptr;
  return reads_ours || writes_output || (!is_copied && overlap(input_, later.output));
}

}  // namespace lockstep::shm
