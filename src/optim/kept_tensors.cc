#include "optim/kept_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace lockstep::optim {

StateFormat format_of(const at::Tensor& values) {
  if (values.scalar_type() == at::kByte) return StateFormat::blocks;
  return values.scalar_type() == at::kBFloat16 ? StateFormat::bfloat16 : StateFormat::float32;
}

at::ScalarType dtype_of(StateFormat format) {
  if (format == StateFormat::blocks) return at::kByte;
  return format == StateFormat::bfloat16 ? at::kBFloat16 : at::kFloat;
}

std::int64_t scales_of(StateFormat format, std::int64_t count) {
  return format == StateFormat::blocks ? (count + block_elements - 1) / block_elements : 0;
}

at::Tensor expanded(const at::Tensor& values, const at::Tensor& scales, Codes codes) {
  if (values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kHalf)
    return values.to(at::kFloat);
  if (format_of(values) != StateFormat::blocks) return values;
  at::Tensor plain = at::empty_like(values, values.options().dtype(at::kFloat));
  read_blocks(codes, values.const_data_ptr<std::uint8_t>(), scales.const_data_ptr<float>(),
              plain.mutable_data_ptr<float>(), values.numel());
  return plain;
}

Compressed compressed(const at::Tensor& plain, StateFormat format, Codes codes) {
  if (format != StateFormat::blocks) return {plain.to(dtype_of(format)), {}};
  at::Tensor values = at::empty_like(plain, plain.options().dtype(at::kByte));
  at::Tensor scales = at::empty({scales_of(format, plain.numel())}, at::kFloat);
  write_blocks(codes, plain.const_data_ptr<float>(), values.mutable_data_ptr<std::uint8_t>(),
               scales.mutable_data_ptr<float>(), plain.numel(), nullptr);
  return {values, scales};
}

}  // namespace lockstep::optim
