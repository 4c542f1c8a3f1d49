// Images with labels, held as bytes and normalised as they are handed out.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// A map dataset that gives whole batches: data float [rows, channels, height, width], target int64
// [rows]. A value is (byte / 255 - mean) / deviation, of its channel. Copies share the bytes; any
// number of threads may read.
class Images : public torch::data::datasets::BatchDataset<Images, torch::data::Example<>> {
 public:
  // `pixels` is uint8 [count, channels, height, width], or [count, height, width] of one channel,
  // `labels` an integer tensor [count]; `mean` and `deviation` have one number, or one for each
  // channel. InvalidArgument when they do not fit.
  Images(at::Tensor pixels, const at::Tensor& labels, const std::vector<double>& mean = {0},
         const std::vector<double>& deviation = {1});

  // Indices may repeat and come in any order; InvalidArgument names one that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  [[nodiscard]] std::optional<std::size_t> size() const override;

  [[nodiscard]] const at::Tensor& pixels() const { return pixels_; }
  [[nodiscard]] const at::Tensor& labels() const { return labels_; }

 private:
  at::Tensor pixels_;
  at::Tensor labels_;  // int64
  at::Tensor mean_;    // of each channel: [channels, 1, 1], or of all
  at::Tensor deviation_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
