// Posting: one call as the engine takes it. Addresses, not tensors.
#pragma once

#include "comm/call/dtype.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/op.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string_view>
#include <utility>

namespace lockstep::shm {

struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

[[nodiscard]] inline bool overlap(Buffer a, Buffer b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

// How to give what is kept other memory, after an error: a peer may still write to what it has.
struct Renewal {
  // The memory that it has now.
  Buffer (*memory)(void* object);
  // Gives it fresh memory with the same contents, and never frees what it had. False: it cannot.
  bool (*renew)(void* object);
};

// Something that must live until the operation is complete, such as a tensor. Move-only, never
// allocates.
class KeepAlive {
 public:
  KeepAlive() = default;
  // `renewal`, if any, lives for ever.
  KeepAlive(void* object, void (*release)(void*), const Renewal* renewal = nullptr)
      : object_(object), release_(release), renewal_(renewal) {}
  KeepAlive(KeepAlive&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)),
        release_(other.release_),
        renewal_(other.renewal_) {}
  KeepAlive& operator=(KeepAlive&& other) noexcept {
    reset();
    object_ = std::exchange(other.object_, nullptr);
    release_ = other.release_;
    renewal_ = other.renewal_;
    return *this;
  }
  ~KeepAlive() { reset(); }

  [[nodiscard]] bool exists() const { return object_ != nullptr; }
  void reset() {
    if (object_) release_(std::exchange(object_, nullptr));
  }
  // Never releases it.
  void leak() { object_ = nullptr; }

  // Empty where its memory cannot be renewed.
  [[nodiscard]] Buffer memory() const {
    return object_ && renewal_ ? renewal_->memory(object_) : Buffer();
  }
  [[nodiscard]] bool renew() { return object_ && renewal_ && renewal_->renew(object_); }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
  const Renewal* renewal_ = nullptr;
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
  KeepAlive keep_input = {};
  KeepAlive keep_output = {};

  [[nodiscard]] bool is_uneven() const { return !input_counts.empty() || !output_counts.empty(); }
};

}  // namespace lockstep::shm
