// What the kernels share of vectors of floats. To be included once for each instruction set, inside
// HWY_NAMESPACE; no include guard for that reason.

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

// clamp(g * factor, -limit, limit); what is not a number stays so.
struct TreatmentLanes {
  TreatmentLanes(float factor, float limit)
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

// What one vector of floats takes, or as many 16-bit numbers, of which the first `count` are in
// use; the others are 1 or small.
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
