// MNIST from the folder with its four IDX files, each plain or compressed with the suffix .gz:
// train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte.
#pragma once

#include <lockstep/data/images.h>

#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::data {

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

}  // namespace lockstep::data

#pragma GCC visibility pop
