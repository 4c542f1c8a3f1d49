// Memory that lies in a file without a name: pages come in when they are touched, and go back to
// the disk when they are given back or when memory is short. The file ends with the process,
// however that ends.
//
// All of its space on the disk is reserved when it is made, so that a full disk is an error then,
// and no SIGBUS later.
#pragma once

#include <cstddef>
#include <filesystem>

namespace lockstep::sys {

class ReservedFile {
 public:
  ReservedFile() = default;
  // Zeros, in a file in `folder`. SystemError names the folder when it is not there, cannot be
  // written or has no room; nothing is left then. 0 bytes take nothing.
  ReservedFile(const std::filesystem::path& folder, std::size_t bytes);
  ReservedFile(ReservedFile&& other) noexcept;
  ReservedFile& operator=(ReservedFile&& other) noexcept;
  ~ReservedFile();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Gives a new file that many bytes, zeros whose space on the disk is taken, so that it can be
// mapped. Returns an error number, or 0.
[[nodiscard]] int take_space(int file, std::size_t bytes);

// Advice about a stretch of such memory, which nothing depends on. It will be used soon: it is read
// in while the caller goes on.
void fetch_ahead(const void* begin, std::size_t bytes) noexcept;
// It will not be used for a while: its whole pages leave the process, and their contents stay in
// the file.
void let_go(const void* begin, std::size_t bytes) noexcept;

}  // namespace lockstep::sys
