// IDX files of bytes, the format of MNIST and related datasets: 00 00, 08 for the element type, one
// byte for the number of dims, each size as four big-endian bytes, then the elements in row-major
// order (http://yann.lecun.com/exdb/mnist).
//
// Plain and gzip-compressed files are distinguished by their first bytes, not by their names.
// Throws BadInput with a one-line message (file, expected, found) if a file is missing, has another
// format, or is too short or too long.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct gzFile_s;

namespace lockstep::data {

// Reads a file of bytes, uint8, with at least one dim.
[[nodiscard]] at::Tensor read_idx(const std::filesystem::path& file);

// Reads a file of images: uint8 [count, rows, columns].
[[nodiscard]] at::Tensor read_idx_images(const std::filesystem::path& file);

// Reads a file of labels: uint8 [count].
[[nodiscard]] at::Tensor read_idx_labels(const std::filesystem::path& file);

// Reads a file from beginning to end; decompresses it if it is gzip-compressed.
class GzipReader {
 public:
  // Throws BadInput if the file cannot be opened, or is a pipe, a device or a folder.
  explicit GzipReader(std::filesystem::path file);

  // Fills `bytes`; returns the number of bytes read, which is smaller than requested only at the
  // end of the file. Throws BadInput if the compressed stream is damaged or truncated.
  std::size_t read(std::span<std::byte> bytes);
  // Reads at most `most` bytes, up to the end of the file. Throws BadInput if they do not fit into
  // a quarter of the memory: a few compressed bytes may be terabytes.
  [[nodiscard]] std::vector<std::byte> read_rest(std::size_t most);

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

 private:
  struct Close {
    void operator()(gzFile_s* stream) const;
  };
  [[noreturn]] void refuse(int error, const std::string& message) const;

  std::filesystem::path file_;
  std::unique_ptr<gzFile_s, Close> stream_;
};

}  // namespace lockstep::data
