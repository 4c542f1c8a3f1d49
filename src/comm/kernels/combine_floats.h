// float32 sums of few ranks, for combine.cc: the whole tree in registers, each input read and each
// output written once. To be included once for each instruction set, inside HWY_NAMESPACE; no
// include guard for that reason.

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

// With as many outputs as inputs, or one: then the pointers stay in registers.
template <int ranks, int outputs, bool average, bool stream>
std::int64_t sum_floats(const Combination& c) {
  const hn::ScalableTag<float> tag;
  const auto lanes = hn::Lanes(tag);
  const auto divisor = hn::Set(tag, static_cast<float>(ranks));
  // Page by page the hardware's own prefetching begins anew; so far ahead it has nothing to do.
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
    if (i + ahead < elements) {  // beyond lies what peers are about to write
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

// Returns how many elements are done; the rest, and other numbers of ranks, are for the tiles: they
// read fewer streams at once, which the hardware follows better from six on.
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
