// Spans: the unit of work of our kernels. A span is one or more parameters that are adjacent in
// memory, together with their gradients and their state.
#pragma once

#include "optim/update_entry.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <vector>

namespace lockstep::optim {

// State memory in its storage format. Offsets count elements.
struct StateBuffer {
  std::byte* data = nullptr;  // null: not in use
  float* scales = nullptr;
  StateFormat format = StateFormat::float32;
  Codes codes = Codes::with_sign;
};

struct ParameterSpan {
  std::int64_t count = 0;
  std::int64_t age = 0;
  bool first = false;
  std::int64_t place = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;           // of the parameter
  c10::ScalarType gradient_dtype = c10::ScalarType::Float;  // the parameter's dtype, or float32
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  const dispatch::ValueSource* source = nullptr;  // computes the gradient, which then has no memory
  std::int64_t source_begin = 0;
  float* master = nullptr;  // null: the parameter is float32
  std::array<StateBuffer, 3> state;

  // Returns true if everything is float32, so that a kernel needs buffers for computed gradients
  // only.
  [[nodiscard]] bool is_plain() const;
  // Returns the bytes per element that an update reads and writes.
  [[nodiscard]] double bytes_an_element() const;
};

// Returns the spans of those entries that our kernels update, in order. `entries` own the memory.
[[nodiscard]] std::vector<ParameterSpan> make_spans(const std::vector<UpdateEntry>& entries);

// Calls update(index of the span, begin, end) for pieces of all spans on LibTorch's threads; pieces
// begin at multiples of block_elements.
void for_each_piece(std::span<const ParameterSpan> spans,
                    const std::function<void(std::size_t, std::int64_t, std::int64_t)>& update);

// For plain spans: calls update(begin, end, gradient) for tiles of [begin, end); `gradient` points
// to the gradient of the tile's first element. If gradients are computed on the fly, a tile fits
// the L1 cache; otherwise there is a single tile.
template <typename Update>
void for_each_tile(const ParameterSpan& span, std::int64_t begin, std::int64_t end,
                   Update&& update) {
  if (span.source == nullptr)
    return update(begin, end, reinterpret_cast<const float*>(span.gradient) + begin);
  alignas(64) std::array<float, 4096> gradient;
  for (; begin < end; begin += std::ssize(gradient)) {
    std::int64_t count = std::min(std::ssize(gradient), end - begin);
    span.source->read(span.source_begin + begin, count, gradient.data());
    update(begin, begin + count, gradient.data());
  }
}

// Adds the bytes that an update of all spans reads and writes to step.bytes_moved.
void count_bytes(std::span<const ParameterSpan> spans, const GroupStep& step);

// Returns the key of the random rounding bits for one step of one group.
[[nodiscard]] std::uint32_t rounding_key(std::uint64_t seed, std::int64_t group, std::int64_t age);

// Some elements of a span as float32. If the memory is not float32, they are in buffers that stay
// in the L1 cache.
class Tile {
 public:
  static constexpr std::int64_t elements = 1024;  // whole blocks

  // Loads the elements [begin, begin + count) of `span`; count is at most `elements`. The kernel
  // itself reads and writes state in the format `direct`, for which state() returns null.
  Tile(const ParameterSpan& span, std::int64_t begin, std::int64_t count, std::uint32_t key,
       StateFormat direct = StateFormat::float32);

  [[nodiscard]] float* parameter() const;
  [[nodiscard]] const float* gradient() const { return gradient_; }
  // Null if the span has no state at this index.
  [[nodiscard]] float* state(std::size_t which) const { return state_[which]; }

  // Writes changed elements back to the span.
  void close();

 private:
  [[nodiscard]] bool is_open(std::size_t which) const {
    return span_.state[which].data != nullptr &&
           (direct_ == StateFormat::float32 || span_.state[which].format != direct_);
  }

  void take_gradient();

  const ParameterSpan& span_;
  std::int64_t begin_, count_;
  std::uint32_t key_;
  StateFormat direct_;
  const float* gradient_ = nullptr;
  std::array<float*, 3> state_{};
  alignas(64) std::array<float, elements> gradient_buffer_;
  alignas(64) std::array<std::array<float, elements>, 2> state_buffers_;
};

}  // namespace lockstep::optim
