// Compiled once per instruction set (Highway's foreach_target); the best one is selected at run
// time.
#include "comm/kernels/combine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/kernels/combine.cc"
// Skip targets that bring no wider registers, to save compile time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "comm/kernels/combine_ops.h"

constexpr std::int64_t tile_bytes = 4096;  // four ranks' tiles easily fit into the L1 cache
constexpr int tree_levels = 10;            // a tree of max_ranks leaves, plus one level

template <typename Wide>
constexpr std::int64_t tile_elements = tile_bytes / static_cast<std::int64_t>(sizeof(Wide));

void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t lanes = hn::Lanes(tag);
  auto* target = reinterpret_cast<std::uint8_t*>(to);
  auto* source = reinterpret_cast<const std::uint8_t*>(from);
  std::size_t head =
      std::min(bytes, (lanes - reinterpret_cast<std::uintptr_t>(to) % lanes) % lanes);
  std::memcpy(target, source, head);
  std::size_t i = head;
  for (; i + lanes <= bytes; i += lanes) hn::Stream(hn::LoadU(tag, source + i), tag, target + i);
  std::memcpy(target + i, source + i, bytes - i);
  hwy::FlushStream();
}

void CopyBytes(std::byte* to, const std::byte* from, std::size_t bytes, bool stream) {
  if (to == from || bytes == 0) return;
  if (stream)
    stream_bytes(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

// One tile of a reduction tree: the values of ranks [low, high) at `begin`.
template <typename Type, typename Operation>
struct Tree {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;

  std::span<const std::byte* const> inputs;
  std::int64_t begin;
  std::int64_t length;

  const Wide* leaf(int rank, [[maybe_unused]] Wide* scratch) const {
    auto* values = reinterpret_cast<const Stored*>(inputs[rank]) + begin;
    if constexpr (Type::converts) {
      for (std::int64_t i = 0; i < length; ++i) scratch[i] = Type::widen(values[i]);
      return scratch;
    } else {
      return values;
    }
  }

  // Returns the result, which is in `scratch` or, for a single leaf, possibly in the input itself.
  const Wide* branch(int low, int high, Wide* scratch) const {
    if (high - low == 1) return leaf(low, scratch);
    int middle = low + left_branch(high - low);
    const Wide* left = branch(low, middle, scratch);
    const Wide* right = branch(middle, high, scratch + tile_elements<Wide>);
    for (std::int64_t i = 0; i < length; ++i) scratch[i] = Operation()(left[i], right[i]);
    return scratch;
  }
};

template <typename Type>
void store_tile(const Combination& c, std::int64_t begin, std::int64_t length,
                const typename Type::Wide* values) {
  using Stored = typename Type::Stored;
  [[maybe_unused]] std::array<Stored, Type::converts ? tile_elements<typename Type::Wide> : 1>
      narrowed;
  const std::byte* result = reinterpret_cast<const std::byte*>(values);
  if constexpr (Type::converts) {
    for (std::int64_t i = 0; i < length; ++i) narrowed[i] = Type::narrow(values[i]);
    result = reinterpret_cast<const std::byte*>(narrowed.data());
  }
  std::size_t offset = static_cast<std::size_t>(begin) * sizeof(Stored);
  for (std::byte* output : c.outputs)
    CopyBytes(output + offset, result, static_cast<std::size_t>(length) * sizeof(Stored), c.stream);
}

template <typename Type, typename Operation, bool average = false>
void combine_in_tiles(const Combination& c, std::int64_t first = 0) {
  using Wide = typename Type::Wide;
  alignas(64) std::array<Wide, static_cast<std::size_t>(tile_elements<Wide> * tree_levels)> scratch;
  for (std::int64_t begin = first; begin < c.elements; begin += tile_elements<Wide>) {
    std::int64_t length = std::min(tile_elements<Wide>, c.elements - begin);
    Tree<Type, Operation> tree{c.inputs, begin, length};
    const Wide* values = tree.branch(0, static_cast<int>(c.inputs.size()), scratch.data());
    if constexpr (average) {
      for (std::int64_t i = 0; i < length; ++i)
        scratch[i] = values[i] / static_cast<Wide>(c.inputs.size());
      values = scratch.data();
    }
    store_tile<Type>(c, begin, length, values);
  }
}

// Sums of float32 over few ranks. The whole tree is in registers; each input is read once and each
// output written once.

template <int low, int high, typename Tag>
HWY_INLINE hn::Vec<Tag> tree_in_registers(Tag tag, const float* const* inputs, std::size_t i) {
  if constexpr (high - low == 1) {
    return hn::LoadU(tag, inputs[low] + i);
  } else {
    constexpr int middle = low + left_branch(high - low);
    return hn::Add(tree_in_registers<low, middle>(tag, inputs, i),
                   tree_in_registers<middle, high>(tag, inputs, i));
  }
}

template <bool stream, typename Tag>
HWY_INLINE void store(hn::Vec<Tag> values, Tag tag, float* to) {
  if constexpr (stream)
    hn::Stream(values, tag, to);
  else
    hn::StoreU(values, tag, to);
}

bool is_aligned(const Combination& c, std::size_t to) {
  return std::all_of(c.outputs.begin(), c.outputs.end(), [to](const std::byte* output) {
    return reinterpret_cast<std::uintptr_t>(output) % to == 0;
  });
}

// The number of outputs equals the number of inputs or is one, so that the pointers stay in
// registers.
template <int ranks, int outputs, bool average, bool stream>
std::int64_t sum_floats(const Combination& c) {
  const hn::ScalableTag<float> tag;
  const auto lanes = hn::Lanes(tag);
  const auto divisor = hn::Set(tag, static_cast<float>(ranks));
  // The hardware prefetcher restarts at every page; prefetching this far ahead leaves nothing for
  // it to do.
  constexpr std::size_t ahead = 2048 / sizeof(float);
  std::array<const float*, ranks> inputs;
  std::array<float*, outputs> to;
  for (int rank = 0; rank < ranks; ++rank)
    inputs[rank] = reinterpret_cast<const float*>(c.inputs[rank]);
  for (int output = 0; output < outputs; ++output)
    to[output] = reinterpret_cast<float*>(c.outputs[output]);
  auto elements = static_cast<std::size_t>(c.elements);
  std::size_t i = 0;
  for (; i + 2 * lanes <= elements; i += 2 * lanes) {
    if (i + ahead < elements) {  // peers may be writing the memory beyond the end
      for (const float* input : inputs) hwy::Prefetch(input + i + ahead);
    }
    auto first = tree_in_registers<0, ranks>(tag, inputs.data(), i);
    auto second = tree_in_registers<0, ranks>(tag, inputs.data(), i + lanes);
    if constexpr (average) {
      first = hn::Div(first, divisor);
      second = hn::Div(second, divisor);
    }
    for (float* output : to) {
      store<stream>(first, tag, output + i);
      store<stream>(second, tag, output + i + lanes);
    }
  }
  if constexpr (stream) hwy::FlushStream();
  return static_cast<std::int64_t>(i);
}

template <int ranks, int outputs, bool average>
std::int64_t sum_floats(const Combination& c) {
  bool stream = c.stream && is_aligned(c, hn::Lanes(hn::ScalableTag<float>()) * sizeof(float));
  return stream ? sum_floats<ranks, outputs, average, true>(c)
                : sum_floats<ranks, outputs, average, false>(c);
}

template <int ranks, bool average>
std::int64_t sum_floats(const Combination& c) {
  if (c.outputs.size() == ranks) return sum_floats<ranks, ranks, average>(c);
  if (c.outputs.size() == 1) return sum_floats<ranks, 1, average>(c);
  return 0;
}

// Returns the number of elements that were summed; Tree handles the rest, and all elements if there
// are six ranks or more: it reads fewer streams at once, which is faster with the hardware
// prefetcher.
template <bool average>
std::int64_t sum_floats(const Combination& c) {
  switch (c.inputs.size()) {
    case 2:
      return sum_floats<2, average>(c);
    case 3:
      return sum_floats<3, average>(c);
    case 4:
      return sum_floats<4, average>(c);
    case 5:
      return sum_floats<5, average>(c);
    default:
      return 0;
  }
}

template <typename Type>
void combine_fractions(const Combination& c) {
  switch (c.op) {
    case Op::sum:
      return combine_in_tiles<Type, Add>(c);
    case Op::average:
      return combine_in_tiles<Type, Add, true>(c);
    case Op::product:
      return combine_in_tiles<Type, Multiply>(c);
    case Op::min:
      return combine_in_tiles<Type, Least>(c);
    case Op::max:
      return combine_in_tiles<Type, Greatest>(c);
    default:
      return;
  }
}

template <typename T>
void combine_integers(const Combination& c) {
  switch (c.op) {
    case Op::sum:
      return combine_in_tiles<Plain<T>, Add>(c);
    case Op::product:
      return combine_in_tiles<Plain<T>, Multiply>(c);
    case Op::min:
      return combine_in_tiles<Plain<T>, Least>(c);
    case Op::max:
      return combine_in_tiles<Plain<T>, Greatest>(c);
    case Op::band:
      return combine_in_tiles<Plain<T>, std::bit_and<T>>(c);
    case Op::bor:
      return combine_in_tiles<Plain<T>, std::bit_or<T>>(c);
    case Op::bxor:
      return combine_in_tiles<Plain<T>, std::bit_xor<T>>(c);
    case Op::average:
      return;
  }
}

// Combines booleans, stored as bytes 0 and 1, with the semantics of LibTorch's arithmetic.
void combine_booleans(const Combination& c) {
  using Byte = Plain<std::uint8_t>;
  switch (c.op) {
    case Op::sum:
    case Op::max:
    case Op::bor:
      return combine_in_tiles<Byte, std::bit_or<std::uint8_t>>(c);
    case Op::product:
    case Op::min:
    case Op::band:
      return combine_in_tiles<Byte, std::bit_and<std::uint8_t>>(c);
    case Op::bxor:
      return combine_in_tiles<Byte, std::bit_xor<std::uint8_t>>(c);
    case Op::average:
      return;
  }
}

void Combine(const Combination& c) {
  switch (c.dtype) {
    case DType::float32:
      if (c.op == Op::sum) return combine_in_tiles<Plain<float>, Add>(c, sum_floats<false>(c));
      if (c.op == Op::average)
        return combine_in_tiles<Plain<float>, Add, true>(c, sum_floats<true>(c));
      return combine_fractions<Plain<float>>(c);
    case DType::float64:
      return combine_fractions<Plain<double>>(c);
    case DType::float16:
      return combine_fractions<Float16>(c);
    case DType::bfloat16:
      return combine_fractions<BFloat16>(c);
    case DType::int64:
      return combine_integers<std::int64_t>(c);
    case DType::int32:
      return combine_integers<std::int32_t>(c);
    case DType::int16:
      return combine_integers<std::int16_t>(c);
    case DType::int8:
      return combine_integers<std::int8_t>(c);
    case DType::uint8:
      return combine_integers<std::uint8_t>(c);
    case DType::boolean:
      return combine_booleans(c);
    default:
      return;
  }
}

}  // namespace
}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
namespace {

HWY_EXPORT(Combine);
HWY_EXPORT(CopyBytes);

}  // namespace

bool can_combine(DType dtype, Op op) {
  if (is_integral(dtype)) return op != Op::average;
  return !is_complex(dtype) && !is_opaque(dtype) && op <= Op::max;
}

void combine(const Combination& combination) { HWY_DYNAMIC_DISPATCH(Combine)(combination); }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool stream) {
  HWY_DYNAMIC_DISPATCH(CopyBytes)(to, from, bytes, stream);
}

}  // namespace lockstep::kernels
#endif
