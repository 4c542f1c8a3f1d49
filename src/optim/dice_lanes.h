// Random bits by place, for vectors of floats. To be included once for each instruction set, inside
// HWY_NAMESPACE; no include guard for that reason.

using WordTag = hn::ScalableTag<std::uint32_t>;
using Words = hn::Vec<WordTag>;

// 16 random bits, in the low half, for elements i, i + 1, ... of a call. The hash is C. Wellons's
// (Prospecting for Hash Functions: 16, 0x21f0aaad, 15, 0x735a2d97, 15).
HWY_INLINE Words roll(const Dice& dice, std::size_t i) {
  const WordTag tag;
  Words x = hn::Iota(tag, dice.first + static_cast<std::uint32_t>(i));
  x = hn::Xor(hn::Mul(x, hn::Set(tag, 0x9e3779b1U)), hn::Set(tag, dice.key));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(tag, 0x21f0aaadU));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(tag, 0x735a2d97U));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  return dice.stream == 0 ? hn::ShiftRight<16>(x) : hn::And(x, hn::Set(tag, 0xffffU));
}
