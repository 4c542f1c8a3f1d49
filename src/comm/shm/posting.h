// Posting: one call as the engine takes it. Addresses, not tensors.
#pragma once

#include "comm/shm/dtype.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/op.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string_view>
#include <utility>

namespace lockstep::shm {

// Something that must live until the operation is complete, such as a tensor. Move-only, never
// allocates.
class Keep {
 public:
  Keep() = default;
  Keep(void* object, void (*release)(void*)) : object_(object), release_(release) {}
  Keep(Keep&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), release_(other.release_) {}
  Keep& operator=(Keep&& other) noexcept {
    reset();
    object_ = std::exchange(other.object_, nullptr);
    release_ = other.release_;
    return *this;
  }
  ~Keep() { reset(); }

  void reset() {
    if (object_) release_(std::exchange(object_, nullptr));
  }
  // Never releases it.
  void forsake() { object_ = nullptr; }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
};

struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

struct Posting {
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  int root = 0;  // of send and recv: the peer
  DType dtype = DType::uint8;
  Buffer input;
  Buffer output;
  // Elements, as in Call; only uneven ones are given.
  std::span<const std::int64_t> input_counts = {};
  std::span<const std::int64_t> output_counts = {};
  std::string_view tag = {};
  Duration timeout{};
  std::source_location where = std::source_location::current();
  Keep keep_input = {};
  Keep keep_output = {};
};

}  // namespace lockstep::shm
