// CIFAR-10 (Krizhevsky 2009) from the folder of its binary version: data_batch_1.bin to
// data_batch_5.bin for training and test_batch.bin for testing, each plain or compressed with the
// suffix .gz. A record is a label (0 to 9) and 32 rows of 32 pixels: all of red, then green, then
// blue.
#pragma once

#include <lockstep/data/images.h>

#include <filesystem>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

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
