// Data that is small enough to train on in a test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::test {

// Writes a text of a few letters whose continuation is easy to learn.
inline void write_tiny_text(const std::filesystem::path& path) {
  std::ofstream file(path);
  for (int i = 0; i < 100; ++i) file << "abacus banana " << (i % 7 == 0 ? "cab\n" : "");
}

inline void write_idx(const std::filesystem::path& path, std::uint8_t dims, std::uint32_t count,
                      const std::string& content) {
  std::string bytes{0, 0, 8, static_cast<char>(dims)};
  auto size = [&](std::uint32_t value) {
    for (int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift);
  };
  size(count);
  if (dims == 3) size(28), size(28);
  std::ofstream(path, std::ios::binary) << bytes << content;
}

// Writes digits with one bright row each, which encodes the digit.
inline void write_tiny_digits(const std::filesystem::path& folder, std::uint32_t training,
                              std::uint32_t test) {
  auto write = [&](const std::string& name, std::uint32_t count) {
    std::string images, labels;
    for (std::uint32_t i = 0; i < count; ++i) {
      std::string image(28 * 28, '\0');
      image.replace((i % 10) * 2 * 28, 2 * 28, 2 * 28, static_cast<char>(200));
      images += image;
      labels += static_cast<char>(i % 10);
    }
    write_idx(folder / (name + "-images-idx3-ubyte"), 3, count, images);
    write_idx(folder / (name + "-labels-idx1-ubyte"), 1, count, labels);
  };
  write("train", training);
  write("t10k", test);
}

// Writes CIFAR-10 records with one bright channel and side each, which encode the kind.
inline void write_tiny_photographs(const std::filesystem::path& folder, int training, int test) {
  auto write = [&](const std::string& name, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      const int kind = i % 10;
      std::string image(3 * 1024, static_cast<char>(60));
      image.replace(static_cast<std::size_t>(kind % 3 * 1024 + kind / 3 * 256), 256, 256,
                    static_cast<char>(220));
      bytes += static_cast<char>(kind);
      bytes += image;
    }
    std::ofstream(folder / name, std::ios::binary) << bytes;
  };
  write("data_batch_1.bin", training);
  write("test_batch.bin", test);
}

}  // namespace lockstep::test
