// MNIST from the folder that holds its four IDX files, each plain or with .gz behind its name:
// train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte.
#pragma once

#include <lockstep/data/images.h>

#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::data {

enum class MnistPart { train, test };

struct MnistOptions {
  MnistPart part = MnistPart::train;
  // Those of PyTorch's MNIST examples.
  double mean = 0.1307;
  double deviation = 0.3081;
};

// Reads one part. BadInput in one line: a file that is missing (both names are given), damaged, of
// another kind; unequal numbers of images and labels; a label above 9. The numbers and sizes of
// images are the files' own, so that smaller sets in the same form work too.
[[nodiscard]] Images mnist(const std::filesystem::path& folder, MnistOptions options = {});

}  // namespace lockstep::data

#pragma GCC visibility pop
