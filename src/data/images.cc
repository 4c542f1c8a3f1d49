#include <lockstep/data/images.h>

#include "data/index_tensor.h"

#include <lockstep/base/error.h>

namespace lockstep::data {

namespace {

at::Tensor of_channels(const char* what, const std::vector<double>& numbers,
                       const at::Tensor& pixels) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  const std::int64_t channels = pixels.dim() == 3 ? 1 : pixels.size(1);
  if (count != 1 && count != channels) {
    throw InvalidArgument(c10::str("Images: expected one ", what, " or ", channels,
                                   ", one for each channel, found ", count));
  }
  return at::tensor(numbers, at::kFloat).view({count, 1, 1});
}

}  // namespace

Images::Images(at::Tensor pixels, const at::Tensor& labels, const std::vector<double>& mean,
               const std::vector<double>& deviation)
    : pixels_(std::move(pixels)) {
  if ((pixels_.dim() != 3 && pixels_.dim() != 4) || pixels_.scalar_type() != at::kByte ||
      labels.dim() != 1 || labels.is_floating_point() || labels.size(0) != pixels_.size(0)) {
    throw InvalidArgument(
        c10::str("Images: expected bytes [count, channels, height, width] or [count, height, "
                 "width] and count labels, found ",
                 pixels_.scalar_type(), " ", pixels_.sizes(), " and ", labels.scalar_type(), " ",
                 labels.sizes()));
  }
  labels_ = labels.to(at::kLong);
  mean_ = of_channels("mean", mean, pixels_);
  deviation_ = of_channels("deviation", deviation, pixels_);
}

torch::data::Example<> Images::get_batch(c10::ArrayRef<std::size_t> indices) {
  const at::Tensor rows = index_tensor(indices, *size(), "Images");
  at::Tensor data = pixels_.index_select(0, rows).to(at::kFloat);
  if (data.dim() == 3) data = data.unsqueeze(1);
  data.div_(255).sub_(mean_).div_(deviation_);
  return {data, labels_.index_select(0, rows)};
}

std::optional<std::size_t> Images::size() const {
  return static_cast<std::size_t>(pixels_.size(0));
}

}  // namespace lockstep::data
