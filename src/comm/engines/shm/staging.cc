#include "comm/engines/shm/staging.h"

#include <cstring>
#include <string_view>
#include <utility>

namespace lockstep::shm {
namespace {

constexpr std::string_view for_a_copy =
    "; a tensor that was made before init(), or in memory of the caller's own, is copied there for "
    "the call: make it after init()";

}  // namespace

Staged::Staged(const Peers& peers, Buffer input, Buffer output, const DataPath& path)
    : input_location_(path.input), output_location_(path.output), arena_(peers.arena().get()) {
  if (path.reads) input_ = input;
  if (path.writes) output_ = output;
  Arena& arena = *arena_;
  if (input_.bytes > 0 && !input_location_.is_somewhere()) {
    input_block_ = arena.allocate(input_.bytes, for_a_copy);
    std::memcpy(input_block_, input_.data, input_.bytes);
    input_location_ = peers.locate(input_block_, input_.bytes);
  }
  if (output_.bytes == 0 || output_location_.is_somewhere()) return;
  bool in_place = output_.data == input_.data && output_.bytes == input_.bytes;
  try {
    output_block_ = in_place ? input_block_ : arena.allocate(output_.bytes, for_a_copy);
  } catch (...) {
    release();
    throw;
  }
  output_location_ = peers.locate(output_block_, output_.bytes);
}

void Staged::carry(Buffer input, Buffer output, const DataPath& path) {
  release();
  input_ = path.reads ? input : Buffer();
  output_ = path.writes ? output : Buffer();
  input_location_ = path.input;
  output_location_ = Location();
  carried_ = true;
  keeps_own_part_ = path.keeps_own_part;
}

Staged& Staged::operator=(Staged&& other) noexcept {
  if (this == &other) return *this;
  release();
  input_ = other.input_;
  output_ = other.output_;
  input_location_ = other.input_location_;
  output_location_ = other.output_location_;
  carried_ = other.carried_;
  keeps_own_part_ = other.keeps_own_part_;
  arena_ = other.arena_;
  input_block_ = std::exchange(other.input_block_, nullptr);
  output_block_ = std::exchange(other.output_block_, nullptr);
  return *this;
}

void Staged::copy_out() {
  if (output_block_) std::memcpy(output_.data, output_block_, output_.bytes);
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
  bool is_copied = (carried_ && !keeps_own_part_) || input_block_ != nullptr;
  if (later.same_channel && !keeps_own_part_)
    return delivers_late() ? reads_ours || writes_output : reads_ours && later.is_copied;
  return reads_ours || writes_output || (!is_copied && overlap(input_, later.output));
}

}  // namespace lockstep::shm
