// Vector helpers that the kernels share. Include this file once per instruction set, inside
// HWY_NAMESPACE and after formats_kernel.h; hence it has no include guard.

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

// Computes clamp(g * factor, -limit, limit); NaN stays NaN.
struct TransformLanes {
  TransformLanes(float factor, float limit)
      : factor(hn::Set(FloatTag(), factor)),
        upper(hn::Set(FloatTag(), limit)),
        lower(hn::Set(FloatTag(), -limit)) {}

  HWY_INLINE Floats operator()(Floats gradient) const {
    Floats g = hn::Mul(gradient, factor);
    g = hn::IfThenElse(hn::Gt(g, upper), upper, g);
    return hn::IfThenElse(hn::Lt(g, lower), lower, g);
  }

  Floats factor, upper, lower;
};

// A buffer for one vector of floats, or for equally many 16-bit numbers. The first `count` elements
// are used; the others hold 1 or a small number.
template <class T>
struct LaneBuffer {
  LaneBuffer(const T* from, std::size_t count) : count(count) {
    for (T& value : values) value = 1;
    if (count > 0) std::memcpy(values, from, count * sizeof(T));
  }
  void store(T* to) const { std::memcpy(to, values, count * sizeof(T)); }

  std::size_t count;
  HWY_ALIGN T values[HWY_MAX_BYTES / sizeof(float)];
};

// Random bits by index.

using WordTag = hn::ScalableTag<std::uint32_t>;
using Words = hn::Vec<WordTag>;

// Returns 32 random bits for elements i, i + 1, ... of a call. The hash is by C. Wellons
// (Prospecting for Hash Functions: 16, 0x21f0aaad, 15, 0x735a2d97, 15).
HWY_INLINE Words random_words(const StochasticRounding& rounding, std::size_t i) {
  const WordTag tag;
  constexpr std::uint32_t apart = 0x9e3779b1U;  // multiplier of indices
  Words lanes = hn::Mul(hn::Iota(tag, 0), hn::Set(tag, apart));
  Words x = hn::Add(lanes, hn::Set(tag, (rounding.first + static_cast<std::uint32_t>(i)) * apart));
  x = hn::Xor(x, hn::Set(tag, rounding.key));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(tag, 0x21f0aaadU));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(tag, 0x735a2d97U));
  return hn::Xor(x, hn::ShiftRight<15>(x));
}

// Returns the 16 bits that belong to a stream, in the low half of each word.
HWY_INLINE Words stream_of(Words words, int stream) {
  return stream == 0 ? hn::ShiftRight<16>(words) : hn::And(words, hn::Set(WordTag(), 0xffffU));
}

HWY_INLINE Words random_bits(const StochasticRounding& rounding, std::size_t i) {
  return stream_of(random_words(rounding, i), rounding.stream);
}

// Conversion from and to bfloat16.

using HalfBits = hn::Rebind<std::uint16_t, FloatTag>;
using Halves = hn::Vec<HalfBits>;

// Returns the low 16 bits of each word; the high bits must be 0.
HWY_INLINE Halves low_halves(Words words) {
  const hn::Rebind<std::int32_t, FloatTag> signed_tag;
  return hn::DemoteTo(HalfBits(), hn::BitCast(signed_tag, words));
}

HWY_INLINE Floats widened_bfloat16(Halves bits) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), bits)));
}

// Adds the 16-bit number `added` to the low 16 bits, and then drops the low bits. An infinity has
// zeros there and stays infinite.
HWY_INLINE Halves narrowed_bfloat16(Floats values, Words added) {
  Words rounded = hn::ShiftRight<16>(hn::Add(hn::BitCast(WordTag(), values), added));
  auto is_number = hn::RebindMask(WordTag(), hn::Eq(values, values));
  return low_halves(hn::IfThenElse(is_number, rounded, hn::Set(WordTag(), 0x7fc0U)));
}

HWY_INLINE Halves narrowed_bfloat16(Floats values) {
  Words bits = hn::BitCast(WordTag(), values);
  Words odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(WordTag(), 1U));
  return narrowed_bfloat16(values, hn::Add(odd, hn::Set(WordTag(), 0x7fffU)));
}
