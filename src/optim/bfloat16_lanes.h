// Vectors of floats from and to bfloat16. To be included once for each instruction set, inside
// HWY_NAMESPACE, after lanes.h and dice_lanes.h; no include guard for that reason.

using HalfBits = hn::Rebind<std::uint16_t, FloatTag>;
using Halves = hn::Vec<HalfBits>;

// The low 16 bits of each word, of which the high ones are 0.
HWY_INLINE Halves low_halves(Words words) {
  const hn::Rebind<std::int32_t, FloatTag> signed_tag;
  return hn::DemoteTo(HalfBits(), hn::BitCast(signed_tag, words));
}

HWY_INLINE Floats widened_bfloat16(Halves bits) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), bits)));
}

// `added`, 16 bits, is what is added below the bits that stay, before they are cut off. An infinity
// has no bits there and stays.
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
