#include "data/idx.h"

#include "base/check.h"
#include "sys/plain_file.h"

#include <lockstep/base/error.h>

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>
#include <vector>

namespace lockstep::data {

void GzipReader::Close::operator()(gzFile_s* stream) const { ::gzclose_r(stream); }

GzipReader::GzipReader(std::filesystem::path file) : file_(std::move(file)) {
  sys::FileDescriptor opened;
  try {
    opened = sys::PlainFile(file_).release();
  } catch (const SystemError& error) {
    throw BadInput("reading " + file_.string() + ": expected a readable file, found: " +
                   std::generic_category().message(error.error_number()));
  }
  stream_.reset(::gzdopen(opened.get(), "rb"));
  if (!stream_) throw SystemError("reading " + file_.string(), ENOMEM);
  (void)opened.release();  // the stream closes it
  ::gzbuffer(stream_.get(), 1 << 17);
}

std::size_t GzipReader::read(std::span<std::byte> bytes) {
  // gzread() takes an unsigned int and returns an int
  constexpr std::size_t largest = std::size_t{1} << 30;
  std::size_t total = 0;
  while (total < bytes.size()) {
    errno = 0;
    const auto wanted = static_cast<unsigned>(std::min(bytes.size() - total, largest));
    const int count = ::gzread(stream_.get(), bytes.data() + total, wanted);
    int error = Z_OK;
    const std::string message = ::gzerror(stream_.get(), &error);
    if (count < 0 || (error != Z_OK && error != Z_STREAM_END)) refuse(error, message);
    if (count == 0) break;
    total += static_cast<std::size_t>(count);
  }
  return total;
}

std::vector<std::byte> GzipReader::read_rest(std::size_t most) {
  constexpr std::size_t piece = 1 << 22;
  std::vector<std::byte> bytes;
  while (bytes.size() < most) {
    const std::size_t before = bytes.size();
    // A quarter, because both growing the vector and making a tensor copy the data.
    sys::check_fits_memory(file_, before + piece, 0.25);
    bytes.resize(before + std::min(piece, most - before));
    const std::size_t found = read(std::span(bytes).subspan(before));
    bytes.resize(before + found);
    if (found == 0) break;
  }
  return bytes;
}

void GzipReader::refuse(int error, const std::string& message) const {
  const std::size_t end = message.find(">: ");  // zlib begins its messages with "<fd:3>: "
  const std::string cause = error == Z_ERRNO ? std::generic_category().message(errno)
                            : message.starts_with("<fd:") && end != std::string::npos
                                ? message.substr(end + 3)
                                : message;
  throw BadInput("reading " + file_.string() + ": expected an intact file, found: " + cause);
}

namespace {

using Magic = std::array<std::uint8_t, 4>;

constexpr std::uint8_t byte_code = 0x08;

std::string hexadecimal(const Magic& bytes) { return listed(bytes, " ", "{:02x}"); }

std::vector<std::int64_t> read_sizes(GzipReader& reader, std::size_t dims) {
  std::vector<std::uint8_t> bytes(dims * 4);
  const std::size_t found = reader.read(std::as_writable_bytes(std::span(bytes)));
  check_input(found == bytes.size(),
              "reading {}: expected {} bytes of sizes after the first four, found {}",
              reader.file().string(), bytes.size(), found);
  std::vector<std::int64_t> sizes(dims);
  for (std::size_t i = 0; i < bytes.size(); ++i) sizes[i / 4] = sizes[i / 4] << 8 | bytes[i];
  return sizes;
}

std::int64_t byte_count(const GzipReader& reader, const std::vector<std::int64_t>& sizes) {
  constexpr std::int64_t most = std::int64_t{1} << 42;
  std::int64_t count = 1;
  for (std::int64_t size : sizes) {
    size = std::max<std::int64_t>(size, 1);  // check the other sizes even if one is 0
    check_input(count <= most / size,
                "reading {}: expected at most 4 TiB of elements, found sizes [{}]",
                reader.file().string(), listed(sizes, ", "));
    count *= size;
  }
  return std::ranges::count(sizes, 0) > 0 ? 0 : count;
}

std::vector<std::byte> read_elements(GzipReader& reader, std::int64_t expected) {
  std::vector<std::byte> bytes = reader.read_rest(static_cast<std::size_t>(expected) + 1);
  const std::int64_t found = std::ssize(bytes);
  check_input(found == expected, "reading {}: expected {} bytes of elements, found {}",
              reader.file().string(), expected,
              found > expected ? "more" : formatted("{} (truncated)", found));
  return bytes;
}

at::Tensor read(const std::filesystem::path& file, std::optional<Magic> expected,
                const char* kind) {
  GzipReader reader(file);
  const std::string name = file.string();
  Magic magic{};
  const std::size_t found = reader.read(std::as_writable_bytes(std::span(magic)));
  check_input(found == magic.size(),
              "reading {}: expected an IDX file (four bytes or more), found {} bytes", name, found);
  check_input(magic[0] == 0 && magic[1] == 0 && magic[2] == byte_code && magic[3] != 0,
              "reading {}: expected an IDX file of bytes (first bytes 00 00 08, the number of "
              "dims), found {}",
              name, hexadecimal(magic));
  if (expected)
    check_input(magic == *expected,
                "reading {}: expected an IDX file of {} (first bytes {}), found {}", name, kind,
                hexadecimal(*expected), hexadecimal(magic));
  const std::vector<std::int64_t> sizes = read_sizes(reader, magic[3]);
  const std::vector<std::byte> bytes = read_elements(reader, byte_count(reader, sizes));
  at::Tensor tensor = at::empty(sizes, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

at::Tensor read_idx(const std::filesystem::path& file) { return read(file, std::nullopt, ""); }

at::Tensor read_idx_images(const std::filesystem::path& file) {
  return read(file, Magic{0, 0, byte_code, 3}, "images");
}

at::Tensor read_idx_labels(const std::filesystem::path& file) {
  return read(file, Magic{0, 0, byte_code, 1}, "labels");
}

}  // namespace lockstep::data
