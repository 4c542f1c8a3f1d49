// CIFAR-10 (Krizhevsky 2009) from the folder of its binary version: data_batch_1.bin to
// data_batch_5.bin for training and test_batch.bin, each plain or with .gz behind its name. A
// record is a label (0 to 9) and 32 rows of 32 pixels, all of red first, then green, then blue.
#pragma once

#include <lockstep/data/images.h>

#include <filesystem>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

enum class CifarPart { train, test };

struct CifarOptions {
  CifarPart part = CifarPart::train;
  // Of red, green and blue over the training set, as they are commonly given.
  std::vector<double> mean = {0.4914, 0.4822, 0.4465};
  std::vector<double> deviation = {0.2470, 0.2435, 0.2616};
};

// Reads one part: of the training set all files from number 1 on. BadInput in one line: no file, a
// number that is left out, a file that is damaged, whose size is no multiple of a record, or that
// has a label above 9. The numbers of records are the files' own, so that subsets work too.
[[nodiscard]] Images cifar10(const std::filesystem::path& folder, const CifarOptions& options = {});

}  // namespace lockstep::data

#pragma GCC visibility pop
