// Random bits by place, for vectors of floats. To be included once for each instruction set, inside
// HWY_NAMESPACE; no include guard for that reason.

using WordTag = hn::ScalableTag<std::uint32_t>;
using Words = hn::Vec<WordTag>;

// 32 random bits for elements i, i + 1, ... of a call. The hash is C. Wellons's (Prospecting for
// Hash Functions: 16, 0x21f0aaad, 15, 0x735a2d97, 15).
HWY_INLINE Words roll_words(const Dice& dice, std::size_t i) {
  const WordTag tag;
  constexpr std::uint32_t apart = 0x9e3779b1U;  // what places are multiplied by
  Words lanes = hn::Mul(hn::Iota(tag, 0), hn::Set(tag, apart));
  Words x = hn::Add(lanes, hn::Set(tag, (dice.first + static_cast<std::uint32_t>(i)) * apart));
  x = hn::Xor(x, hn::Set(tag, dice.key));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(tag, 0x21f0aaadU));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(tag, 0x735a2d97U));
  return hn::Xor(x, hn::ShiftRight<15>(x));
}

// The 16 of them, in the low half, that belong to a stream.
HWY_INLINE Words stream_of(Words words, int stream) {
  return stream == 0 ? hn::ShiftRight<16>(words) : hn::And(words, hn::Set(WordTag(), 0xffffU));
}

HWY_INLINE Words roll(const Dice& dice, std::size_t i) {
  return stream_of(roll_words(dice, i), dice.stream);
}
