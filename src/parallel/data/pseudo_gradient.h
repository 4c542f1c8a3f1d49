// PseudoGradientAverage: the average over ranks of one flat tensor, as DiLoCo sends it.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/data/diloco.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::data_parallel {

inline constexpr std::int64_t int8_block = 1024;

// n numbers: n bytes of multiples, and then a float32 for each block. Not finite where a number is
// not.
[[nodiscard]] at::Tensor encode_int8(const at::Tensor& values);
// Back, in the dtype of `like`, which has n elements.
[[nodiscard]] at::Tensor decode_int8(const at::Tensor& bytes, const at::Tensor& like);

class PseudoGradientAverage {
 public:
  PseudoGradientAverage() = default;
  // Posts. `values`: one dimension, this rank's; belongs to this object.
  PseudoGradientAverage(Group& group, at::Tensor values, PseudoGradients format,
                        const std::string& tag, std::optional<Duration> timeout);

  // Blocks, once. After an exception nothing may be asked of this object.
  [[nodiscard]] at::Tensor average();

 private:
  at::Tensor values_;
  at::Tensor gathered_;  // of int8: every rank's bytes
  int ranks_ = 1;
  Work work_;
};

}  // namespace lockstep::data_parallel
