// IDX files, the format of MNIST and its relatives: 00 00, one byte for the element type, one byte
// for the number of dims, each size as four bytes big-endian, then the elements in row-major order,
// big-endian (http://yann.lecun.com/exdb/mnist).
//
// Plain and gzip-compressed files are told apart by their first bytes, not by their names. BadInput
// says in one line which file, what was expected and what was found: a missing file, another
// format, a file that ends early or goes on too long.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace lockstep::data {

// Any IDX file: uint8, int8, int16, int32, float or double; at least one dim.
[[nodiscard]] at::Tensor read_idx(const std::filesystem::path& file);

// A file of images: uint8 [count, rows, columns].
[[nodiscard]] at::Tensor read_idx_images(const std::filesystem::path& file);

// A file of labels: uint8 [count].
[[nodiscard]] at::Tensor read_idx_labels(const std::filesystem::path& file);

}  // namespace lockstep::data
