#include <lockstep/data/images.h>

#include "base/check.h"
#include "data/idx.h"
#include "data/index_tensor.h"
#include "sys/files.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <limits>
#include <string>

namespace lockstep::data {
namespace {

at::Tensor of_channels(const char* what, const std::vector<double>& numbers,
                       const at::Tensor& pixels) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  const std::int64_t channels = pixels.dim() == 3 ? 1 : pixels.size(1);
  check(count == 1 || count == channels,
        "Images: expected one {} or {}, one for each channel, found {}", what, channels, count);
  return at::tensor(numbers, at::kFloat).view({count, 1, 1});
}

}  // namespace

Images::Images(at::Tensor pixels, const at::Tensor& labels, const std::vector<double>& mean,
               const std::vector<double>& deviation)
    : pixels_(std::move(pixels)) {
  check((pixels_.dim() == 3 || pixels_.dim() == 4) && pixels_.scalar_type() == at::kByte &&
            labels.dim() == 1 && !labels.is_floating_point() && labels.size(0) == pixels_.size(0),
        "Images: expected bytes [count, channels, height, width] or [count, height, width] and "
        "count labels, found {} [{}] and {} [{}]",
        c10::toString(pixels_.scalar_type()), listed(pixels_.sizes(), ", "),
        c10::toString(labels.scalar_type()), listed(labels.sizes(), ", "));
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

namespace fs = std::filesystem;

// Returns the file, plain or compressed, if there is one.
std::optional<fs::path> find(const fs::path& folder, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"})
    if (sys::exists(folder / candidate)) return folder / candidate;
  return std::nullopt;
}

fs::path find_mnist(const fs::path& folder, const std::string& name) {
  const std::optional<fs::path> file = find(folder, name);
  check_input(file.has_value(), "reading MNIST in {}: expected {} or {}.gz, found neither",
              folder.string(), name, name);
  return *file;
}

void check_labels(const at::Tensor& labels, const fs::path& file) {
  if (labels.numel() == 0) return;
  const auto at = labels.argmax().item<std::int64_t>();
  const int largest = labels[at].item<std::uint8_t>();
  check_input(largest <= 9, "reading {}: expected labels 0 to 9, found {} at index {}",
              file.string(), largest, at);
}

}  // namespace

Images mnist(const fs::path& folder, MnistOptions options) {
  const std::string part = options.part == MnistPart::train ? "train" : "t10k";
  const fs::path image_file = find_mnist(folder, part + "-images-idx3-ubyte");
  const fs::path label_file = find_mnist(folder, part + "-labels-idx1-ubyte");
  at::Tensor images = read_idx_images(image_file);
  const at::Tensor labels = read_idx_labels(label_file);
  check_input(images.size(0) == labels.size(0),
              "reading {}: expected {} labels as there are images in {}, found {}",
              label_file.string(), images.size(0), image_file.string(), labels.size(0));
  check_labels(labels, label_file);
  return Images(std::move(images), labels, {options.mean}, {options.deviation});
}

namespace {

constexpr std::int64_t channels = 3, side = 32, pixels = channels * side * side;
constexpr std::int64_t record = 1 + pixels;
constexpr int last_batch = 5;

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
    std::optional<fs::path> file = find(folder, name);
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

// Returns uint8 [records, 3073].
at::Tensor records_of(const fs::path& file) {
  const std::vector<std::byte> bytes =
      GzipReader(file).read_rest(std::numeric_limits<std::size_t>::max());
  const auto size = static_cast<std::int64_t>(bytes.size());
  check_input(size > 0 && size % record == 0,
              "reading {}: expected records of {} bytes, found {} bytes", file.string(), record,
              size);
  at::Tensor records = at::empty({size / record, record}, at::kByte);
  std::memcpy(records.data_ptr(), bytes.data(), bytes.size());
  check_labels(records.select(1, 0), file);
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
