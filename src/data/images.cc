#include <lockstep/data/images.h>

#include "data/index_tensor.h"

#include <lockstep/base/error.h>

namespace lockstep::data {

Images::Images(at::Tensor pixels, at::Tensor labels, double mean, double deviation)
    : pixels_(std::move(pixels)), mean_(mean), deviation_(deviation) {
  if (pixels_.dim() != 3 || pixels_.scalar_type() != at::kByte || labels.dim() != 1 ||
      labels.is_floating_point() || labels.size(0) != pixels_.size(0)) {
    throw InvalidArgument(
        c10::str("Images: expected bytes [count, height, width] and count labels, found ",
                 pixels_.scalar_type(), " ", pixels_.sizes(), " and ", labels.scalar_type(), " ",
                 labels.sizes()));
  }
  labels_ = labels.to(at::kLong);
}

torch::data::Example<> Images::get_batch(c10::ArrayRef<std::size_t> indices) {
  const at::Tensor rows = index_tensor(indices, *size(), "Images");
  at::Tensor data = pixels_.index_select(0, rows).unsqueeze(1).to(at::kFloat);
  data.div_(255).sub_(mean_).div_(deviation_);
  return {data, labels_.index_select(0, rows)};
}

std::optional<std::size_t> Images::size() const {
  return static_cast<std::size_t>(pixels_.size(0));
}

}  // namespace lockstep::data
