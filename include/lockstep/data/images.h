// Labelled images, stored as bytes and normalised when they are read.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <filesystem>
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

// MNIST from the folder with its four IDX files, each plain or compressed with the suffix .gz:
// train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte.

enum class MnistPart { train, test };

struct MnistOptions {
  MnistPart part = MnistPart::train;
  // The values of PyTorch's MNIST examples.
  double mean = 0.1307;
  double deviation = 0.3081;
};

// Reads one part. Throws BadInput with a one-line message if a file is missing (the message gives
// both names), damaged or of another kind, if the numbers of images and labels differ, or if a
// label is above 9. The number and size of the images follow from the files, so smaller sets in the
// same format work too.
[[nodiscard]] Images mnist(const std::filesystem::path& folder, MnistOptions options = {});

// CIFAR-10 (Krizhevsky 2009) from the folder of its binary version: data_batch_1.bin to
// data_batch_5.bin for training and test_batch.bin for testing, each plain or compressed with the
// suffix .gz. A record is a label (0 to 9) and 32 rows of 32 pixels: all of red, then green, then
// blue.

enum class CifarPart { train, test };

struct CifarOptions {
  CifarPart part = CifarPart::train;
  // Commonly used values for red, green and blue over the training set.
  std::vector<double> mean = {0.4914, 0.4822, 0.4465};
  std::vector<double> deviation = {0.2470, 0.2435, 0.2616};
};

// Reads one part; for the training set, all files from number 1 on. Throws BadInput with a one-line
// message if no file exists, a number is missing in the sequence, or a file is damaged, has a size
// that is not a multiple of a record, or has a label above 9. The number of records follows from
// the size of the files, so subsets work too.
[[nodiscard]] Images cifar10(const std::filesystem::path& folder, const CifarOptions& options = {});

}  // namespace lockstep::data

#pragma GCC visibility pop
