// Named tensors in one file, for exchange with reference.py: a line "name dtype size size ..." per
// tensor, an empty line, then the elements of each tensor in turn, in the host's byte order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline void write_tensors(const std::filesystem::path& file, const NamedTensors& tensors) {
  std::ofstream stream(file, std::ios::binary);
  for (const auto& [name, tensor] : tensors) {
    stream << name << ' ' << (tensor.scalar_type() == at::kLong ? "int64" : "float32");
    for (std::int64_t size : tensor.sizes()) stream << ' ' << size;
    stream << '\n';
  }
  stream << '\n';
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.detach().contiguous();
    stream.write(static_cast<const char*>(dense.const_data_ptr()),
                 static_cast<std::streamsize>(dense.nbytes()));
  }
}

inline std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  NamedTensors tensors;
  for (std::string line; std::getline(stream, line) && !line.empty();) {
    std::istringstream words(line);
    std::string name, type;
    words >> name >> type;
    std::vector<std::int64_t> sizes;
    for (std::int64_t size = 0; words >> size;) sizes.push_back(size);
    tensors.emplace_back(name, at::empty(sizes, type == "int64" ? at::kLong : at::kFloat));
  }
  for (auto& [name, tensor] : tensors) {
    stream.read(static_cast<char*>(tensor.data_ptr()),
                static_cast<std::streamsize>(tensor.nbytes()));
  }
  if (!stream) throw std::runtime_error("reading " + file.string() + ": it ends early");
  return {tensors.begin(), tensors.end()};
}

}  // namespace lockstep::test
