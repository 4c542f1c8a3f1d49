// Labelled images, stored as bytes and normalised when they are read.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// A map dataset that returns whole batches: data is float [rows, channels, height, width], target
// is int64 [rows]. A value is (byte / 255 - mean) / deviation with the mean and deviation of its
// channel. Copies share the bytes; any number of threads may read.
class Images : public torch::data::datasets::BatchDataset<Images, torch::data::Example<>> {
 public:
  // `pixels` is uint8 [count, channels, height, width], or [count, height, width] for one channel;
  // `labels` is an integer tensor [count]; `mean` and `deviation` have one number in total or one
  // per channel. Throws InvalidArgument if the sizes do not match.
  Images(at::Tensor pixels, const at::Tensor& labels, const std::vector<double>& mean = {0},
         const std::vector<double>& deviation = {1});

  // Indices may repeat and come in any order. Throws InvalidArgument if an index is not below
  // size(); the message names the index.
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  [[nodiscard]] std::optional<std::size_t> size() const override;

  [[nodiscard]] const at::Tensor& pixels() const { return pixels_; }
  [[nodiscard]] const at::Tensor& labels() const { return labels_; }

 private:
  at::Tensor pixels_;
  at::Tensor labels_;  // int64
  at::Tensor mean_;    // [channels, 1, 1], or [1, 1, 1] for all channels
  at::Tensor deviation_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
