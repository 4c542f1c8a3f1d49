#include <lockstep/data/images.h>

#include "base/check.h"
#include "data/idx.h"
#include "data/index_tensor.h"
#include "sys/plain_file.h"

#include <lockstep/base/error.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>

namespace lockstep::data {
namespace {

at::Tensor of_channels(const char* what, const std::vector<double>& numbers,
                       const at::Tensor& pixels) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  const std::int64_t channels = pixels.dim() == 3 ? 1 : pixels.size(1);
  if (count != 1 && count != channels) {
    throw InvalidArgument(c10::str("Images: expected one ", what, " or ", channels,
                                   ", one for each channel, found ", count));
  }
  return at::tensor(numbers, at::kFloat).view({count, 1, 1});
}

}  // namespace

Images::Images(at::Tensor pixels, const at::Tensor& labels, const std::vector<double>& mean,
               const std::vector<double>& deviation)
    : pixels_(std::move(pixels)) {
  if ((pixels_.dim() != 3 && pixels_.dim() != 4) || pixels_.scalar_type() != at::kByte ||
      labels.dim() != 1 || labels.is_floating_point() || labels.size(0) != pixels_.size(0)) {
    throw InvalidArgument(
        c10::str("Images: expected bytes [count, channels, height, width] or [count, height, "
                 "width] and count labels, found ",
                 pixels_.scalar_type(), " ", pixels_.sizes(), " and ", labels.scalar_type(), " ",
                 labels.sizes()));
  }
  labels_ = labels.to(at::kLong);
  mean_ = of_channels("mean", mean, pixels_);
  deviation_ = of_channels("deviation", deviation, pixels_);
}

torch::data::Example<> Images::get_batch(c10::ArrayRef<std::size_t> indices) {
  const at::Tensor rows = index_tensor(indices, *size(), "Images");
  at::Tensor data = pixels_.index_select(0, rows).to(at::kFloat);
  if (data.dim() == 3) data = data.unsqueeze(1);
  data.div_(255).sub_(mean_).div_(deviation_);
  return {data, labels_.index_select(0, rows)};
}

std::optional<std::size_t> Images::size() const {
  return static_cast<std::size_t>(pixels_.size(0));
}

namespace {

std::filesystem::path find(const std::filesystem::path& folder, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    if (std::filesystem::exists(folder / candidate)) return folder / candidate;
  }
  throw BadInput("reading MNIST in " + folder.string() + ": expected " + name + " or " + name +
                 ".gz, found neither");
}

void check_labels(const at::Tensor& labels, const std::filesystem::path& file) {
  if (labels.numel() == 0) return;
  const std::int64_t at = labels.argmax().item<std::int64_t>();
  const int largest = labels[at].item<std::uint8_t>();
  if (largest > 9) {
    throw BadInput(c10::str("reading ", file.string(), ": expected labels 0 to 9, found ", largest,
                            " at index ", at));
  }
}

}  // namespace

Images mnist(const std::filesystem::path& folder, MnistOptions options) {
  const std::string part = options.part == MnistPart::train ? "train" : "t10k";
  const std::filesystem::path image_file = find(folder, part + "-images-idx3-ubyte");
  const std::filesystem::path label_file = find(folder, part + "-labels-idx1-ubyte");
  at::Tensor images = read_idx_images(image_file);
  const at::Tensor labels = read_idx_labels(label_file);
  if (images.size(0) != labels.size(0)) {
    throw BadInput(c10::str("reading ", label_file.string(), ": expected ", images.size(0),
                            " labels as there are images in ", image_file.string(), ", found ",
                            labels.size(0)));
  }
  check_labels(labels, label_file);
  return Images(std::move(images), labels, {options.mean}, {options.deviation});
}

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
