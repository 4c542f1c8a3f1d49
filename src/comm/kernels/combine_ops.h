// The element-wise operations and element types of combine.cc: plain functions that compilers
// vectorize. The file is included once per instruction set, inside HWY_NAMESPACE, so it has no
// include guard.

// An element type: Stored in memory, Wide in arithmetic.
template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static constexpr bool converts = false;
};

struct BFloat16 {
  using Stored = std::uint16_t;
  using Wide = float;
  static constexpr bool converts = true;
  static float widen(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  static std::uint16_t narrow(float value) {
    auto bits = std::bit_cast<std::uint32_t>(value);
    std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
    return static_cast<std::uint16_t>(value != value ? 0x7fc0 : rounded);
  }
};

// Branch-free conversions after M. Dukhan's FP16 library (fp16_ieee_to_fp32_value,
// fp16_ieee_from_fp32_value).
struct Float16 {
  using Stored = std::uint16_t;
  using Wide = float;
  static constexpr bool converts = true;
  static float widen(std::uint16_t half) {
    std::uint32_t word = std::uint32_t{half} << 16;
    std::uint32_t twice = word + word;
    float normal = std::bit_cast<float>((twice >> 4) + (0xe0U << 23)) * 0x1.0p-112F;
    float subnormal = std::bit_cast<float>((twice >> 17) | (126U << 23)) - 0.5F;
    std::uint32_t magnitude = twice < (1U << 27) ? std::bit_cast<std::uint32_t>(subnormal)
                                                 : std::bit_cast<std::uint32_t>(normal);
    return std::bit_cast<float>((word & 0x80000000U) | magnitude);
  }
  static std::uint16_t narrow(float value) {
    auto word = std::bit_cast<std::uint32_t>(value);
    std::uint32_t twice = word + word;
    std::uint32_t bias = std::max(twice & 0xff000000U, 0x71000000U);
    float magnitude = std::bit_cast<float>(word & 0x7fffffffU);
    float base =
        std::bit_cast<float>((bias >> 1) + 0x07800000U) + (magnitude * 0x1.0p+112F) * 0x1.0p-110F;
    auto bits = std::bit_cast<std::uint32_t>(base);
    std::uint32_t nonsign = (bits >> 13 & 0x7c00) + (bits & 0x0fff);
    return static_cast<std::uint16_t>((word >> 16 & 0x8000) |
                                      (twice > 0xff000000U ? 0x7e00U : nonsign));
  }
};

// An unsigned type at least as wide as int, so that overflow is defined.
template <typename T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    else
      return a + b;
  }
};

struct Multiply {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    else
      return a * b;
  }
};

struct Least {
  template <typename T>
  T operator()(T a, T b) const {
    T least = b < a ? b : a;
    if constexpr (std::is_floating_point_v<T>)
      least = std::isnan(a) ? a : (std::isnan(b) ? b : least);
    return least;
  }
};

struct Greatest {
  template <typename T>
  T operator()(T a, T b) const {
    T greatest = a < b ? b : a;
    if constexpr (std::is_floating_point_v<T>)
      greatest = std::isnan(a) ? a : (std::isnan(b) ? b : greatest);
    return greatest;
  }
};
