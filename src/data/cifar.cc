#include <lockstep/data/cifar.h>

#include "base/check.h"
#include "data/gzip_reader.h"
#include "sys/plain_file.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t channels = 3, side = 32, pixels = channels * side * side;
constexpr std::int64_t record = 1 + pixels;
constexpr int last_batch = 5;

std::optional<fs::path> find_batch(const fs::path& folder, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"})
    if (fs::exists(folder / candidate)) return folder / candidate;
  return std::nullopt;
}

std::vector<fs::path> files_of(const fs::path& folder, CifarPart part) {
  std::vector<std::string> names{"test_batch.bin"};
  if (part == CifarPart::train) {
    names.clear();
    for (int batch = 1; batch <= last_batch; ++batch)
      names.push_back(formatted("data_batch_{}.bin", batch));
  }
  std::vector<fs::path> files;
  std::string missing;
  for (const std::string& name : names) {
    std::optional<fs::path> file = find_batch(folder, name);
    check_input(!file || missing.empty(),
                "reading CIFAR-10 in {}: expected {} or {}.gz before {}, found neither",
                folder.string(), missing, missing, name);
    if (file) {
      files.push_back(*file);
    } else if (missing.empty()) {
      missing = name;
    }
  }
  check_input(!files.empty(), "reading CIFAR-10 in {}: expected {} or {}.gz, found neither",
              folder.string(), missing, missing);
  return files;
}

// Returns uint8 [records, 3073]. Grows the result with the data, because a few bytes may decompress
// to terabytes.
at::Tensor records_of(const fs::path& file) {
  GzipReader reader(file);
  constexpr std::size_t piece = static_cast<std::size_t>(record) * 1024;
  std::vector<std::byte> bytes;
  for (std::size_t found = piece; found == piece;) {
    const std::size_t before = bytes.size();
    sys::check_fits_memory(file, before + piece, 0.25);
    bytes.resize(before + piece);
    found = reader.read(std::span(bytes).subspan(before));
    bytes.resize(before + found);
  }
  const auto size = static_cast<std::int64_t>(bytes.size());
  check_input(size > 0 && size % record == 0,
              "reading {}: expected records of {} bytes, found {} bytes", file.string(), record,
              size);
  at::Tensor records = at::empty({size / record, record}, at::kByte);
  std::memcpy(records.data_ptr(), bytes.data(), bytes.size());
  const at::Tensor labels = records.select(1, 0);
  const auto at = labels.argmax().item<std::int64_t>();
  const int largest = labels[at].item<std::uint8_t>();
  check_input(largest <= 9, "reading {}: expected labels 0 to 9, found {} at index {}",
              file.string(), largest, at);
  return records;
}

}  // namespace

Images cifar10(const fs::path& folder, const CifarOptions& options) {
  std::vector<at::Tensor> all;
  for (const fs::path& file : files_of(folder, options.part)) all.push_back(records_of(file));
  const at::Tensor records = at::cat(all);
  return Images(records.narrow(1, 1, pixels).reshape({-1, channels, side, side}).contiguous(),
                records.select(1, 0).clone(), options.mean, options.deviation);
}

}  // namespace lockstep::data
