// Damaged or malicious IDX files, plain and compressed: each must be read or rejected with
// BadInput.
#include "data/idx.h"

#include <lockstep/base/error.h>

#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <string>

namespace lockstep::data {
namespace {

using test::below;
using test::FuzzRounds;
using test::mutated;
using test::one_in;
using test::Random;

std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

std::string some_file(Random& random) {
  constexpr char types[] = {0x08, 0x09, 0x0b, 0x0c, 0x0d, 0x0e};
  constexpr std::size_t widths[] = {1, 1, 2, 4, 4, 8};
  // Half of the files have bytes, the only type that is read.
  const std::size_t type = one_in(random, 2) ? 0 : below(random, std::size(types));
  auto dims = 1 + below(random, 3);
  std::string bytes{0, 0, types[type], static_cast<char>(dims)};
  std::size_t count = widths[type];
  for (std::size_t dim = 0; dim < dims; ++dim) {
    auto size = below(random, 5);
    bytes += big_endian(static_cast<std::uint32_t>(size));
    count *= size;
  }
  return bytes + test::random_bytes(random, count);
}

// Returns a file without elements whose sizes have a product that overflows.
std::string nothing_of_great_size(Random& random) {
  auto dims = 3 + below(random, 250);
  std::string bytes{0, 0, 0x08, static_cast<char>(dims)};
  auto empty = below(random, dims);
  for (std::size_t dim = 0; dim < dims; ++dim) bytes += big_endian(dim == empty ? 0 : 0xffffffff);
  return bytes;
}

std::string compressed(const std::string& bytes, const std::filesystem::path& path) {
  gzFile file = ::gzopen(path.c_str(), "wb1");
  ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  ::gzclose(file);
  std::ifstream read(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(read), {}};
}

TEST(IdxFuzz, FilesAreReadOrRefused) {
  const test::TemporaryFolder folder;
  const auto path = folder / "hostile-idx3-ubyte";
  std::uint64_t read = 0;
  FuzzRounds rounds("IDX files");
  while (rounds.next()) {
    Random& random = rounds.random();
    std::string bytes = one_in(random, 8) ? nothing_of_great_size(random) : some_file(random);
    if (one_in(random, 2)) bytes = mutated(bytes, random);
    if (one_in(random, 4)) bytes = compressed(bytes, path);
    if (one_in(random, 3)) bytes = mutated(bytes, random);
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      auto tensor = read_idx(path);
      EXPECT_GE(tensor.dim(), 1);
      ++read;
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find("hostile-idx3-ubyte"), std::string::npos)
          << error.what();
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(read, rounds.count() / 50);
  EXPECT_LT(read, rounds.count());
}

}  // namespace
}  // namespace lockstep::data
