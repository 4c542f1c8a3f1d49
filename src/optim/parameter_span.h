// Spans: what our kernels walk through. A span is one or more parameters whose memory lies side by
// side, together with their gradients and all that is kept of them.
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

// Memory of state in its format. Places count elements.
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
  c10::ScalarType gradient_dtype = c10::ScalarType::Float;  // the same, or float32
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  const dispatch::ValueSource* source = nullptr;  // of the gradient, in place of its memory
  std::int64_t source_begin = 0;
  float* master = nullptr;  // null: the parameter is float32
  std::array<StateBuffer, 3> state;

  // Whether all of it is float32, so that a kernel needs no buffers but perhaps for gradients.
  [[nodiscard]] bool is_plain() const;
  // That an update reads and writes, for each element.
  [[nodiscard]] double bytes_an_element() const;
};

// The spans of entries that are for our kernels, in their order. `entries` own the memory.
[[nodiscard]] std::vector<ParameterSpan> make_spans(const std::vector<UpdateEntry>& entries);

// Calls update(number of the span, begin, end) for pieces of all spans, by LibTorch's threads;
// pieces begin at multiples of block_elements.
void for_each_piece(std::span<const ParameterSpan> spans,
                    const std::function<void(std::size_t, std::int64_t, std::int64_t)>& update);

// For plain spans: calls update(begin, end, gradient) for tiles of [begin, end), `gradient` being
// that of the tile's first element. Where gradients are computed as they are used, a tile fits the
// first cache; elsewhere it is all.
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

// Adds what an update of all spans reads and writes to step.bytes_moved.
void count_bytes(std::span<const ParameterSpan> spans, const GroupStep& step);

// The key of the random bits of rounding for one step of one group.
[[nodiscard]] std::uint32_t rounding_key(std::uint64_t seed, std::int64_t group, std::int64_t age);

// A few elements of a span as float32, in buffers that stay in the first cache where the memory is
// not float32 itself.
class Tile {
 public:
  static constexpr std::int64_t elements = 1024;  // whole blocks

  // The elements [begin, begin + count) of `span`, count at most `elements`. What is kept in the
  // format `direct` the kernel reads and writes itself: state() is null for it.
  Tile(const ParameterSpan& span, std::int64_t begin, std::int64_t count, std::uint32_t key,
       StateFormat direct = StateFormat::float32);

  [[nodiscard]] float* parameter() const;
  [[nodiscard]] const float* gradient() const { return gradient_; }
  // Null where the span keeps nothing at this place.
  [[nodiscard]] float* state(std::size_t which) const { return state_[which]; }

  // Writes what a kernel changed to where it came from.
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
