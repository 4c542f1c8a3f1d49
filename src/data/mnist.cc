#include <lockstep/data/mnist.h>

#include "data/idx.h"

#include <lockstep/base/error.h>

#include <string>

namespace lockstep::data {
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

}  // namespace lockstep::data
