// Reads a file from beginning to end; decompresses it if it is gzip-compressed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

struct gzFile_s;

namespace lockstep::data {

class GzipReader {
 public:
  // Throws BadInput if the file cannot be opened, or is a pipe, a device or a folder.
  explicit GzipReader(std::filesystem::path file);

  // Fills `bytes`; returns the number of bytes read, which is smaller than requested only at the
  // end of the file. Throws BadInput if the compressed stream is damaged or truncated.
  std::size_t read(std::span<std::byte> bytes);

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
