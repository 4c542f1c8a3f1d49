// Writes small IDX files: plain or compressed, valid or invalid.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <zlib.h>

namespace lockstep::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes idx_bytes(std::uint8_t type, const std::vector<std::uint32_t>& sizes,
                       const Bytes& elements) {
  Bytes bytes = {0, 0, type, static_cast<std::uint8_t>(sizes.size())};
  for (std::uint32_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<std::uint8_t>(size >> shift));
  }
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

inline void write_bytes(const std::filesystem::path& file, const Bytes& bytes) {
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

inline void write_compressed(const std::filesystem::path& file, const Bytes& bytes) {
  gzFile stream = ::gzopen(file.c_str(), "wb");
  if (stream == nullptr) throw std::runtime_error("gzopen of " + file.string());
  if (!bytes.empty()) ::gzwrite(stream, bytes.data(), static_cast<unsigned>(bytes.size()));
  ::gzclose(stream);
}

// Returns 0, 1, 2, ... modulo 251.
inline Bytes counting(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i % 251);
  return bytes;
}

}  // namespace lockstep::test
