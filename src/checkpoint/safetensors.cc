#include <lockstep/checkpoint/safetensors.h>

#include <lockstep/base/error.h>

#include "checkpoint/safetensors_header.h"
#include "sys/files.h"

#include <ATen/ops/empty.h>
#include <lockstep/base/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <span>
#include <vector>

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian and written as they lie in memory");

namespace lockstep::checkpoint {
namespace {

// Large elements first, so that each tensor begins at a multiple of its own element size; then by
// name.
std::vector<NamedTensors::const_iterator> file_order(const NamedTensors& tensors) {
  std::vector<NamedTensors::const_iterator> order;
  for (auto item = tensors.begin(); item != tensors.end(); ++item) order.push_back(item);
  std::ranges::stable_sort(order, std::greater{},
                           [](const auto& item) { return item->second.element_size(); });
  return order;
}

SafetensorsHeader describe(const std::vector<NamedTensors::const_iterator>& order,
                           const Metadata& metadata) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::uint64_t offset = 0;
  for (const auto& item : order) {
    const at::Tensor& tensor = item->second;
    if (item->first == "__metadata__")
      throw InvalidArgument("write_safetensors: a tensor cannot be called __metadata__");
    std::uint64_t end = offset + static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    header.entries.push_back(
        {item->first, tensor.scalar_type(), tensor.sizes().vec(), offset, end});
    offset = end;
  }
  return header;
}

std::string read_header_text(std::ifstream& file, std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  if (file_bytes < sizeof length)
    throw BadInput(formatted("expected at least 8 bytes, found {}", file_bytes));
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  if (length > max_header_bytes)
    throw BadInput(
        formatted("expected a header of at most {} bytes, found {}", max_header_bytes, length));
  if (length > file_bytes - sizeof length)
    throw BadInput(formatted("expected a header of {} bytes, the file has {} left", length,
                             file_bytes - sizeof length));
  std::string text(length, '\0');
  file.read(text.data(), static_cast<std::streamsize>(length));
  if (!file) throw BadInput("the header cannot be read");
  return text;
}

Safetensors read_open_file(std::ifstream& file, std::uint64_t file_bytes) {
  std::string text = read_header_text(file, file_bytes);
  SafetensorsHeader header = parse_header(text, file_bytes - sizeof(std::uint64_t) - text.size());
  Safetensors result{.tensors = {}, .metadata = std::move(header.metadata)};
  for (const TensorEntry& entry : header.entries) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
    file.read(static_cast<char*>(tensor.data_ptr()),
              static_cast<std::streamsize>(entry.end - entry.begin));
    if (!file)
      throw BadInput(formatted("tensor '{}' cannot be read: the file became shorter", entry.name));
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  return result;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata) {
  std::vector<NamedTensors::const_iterator> order = file_order(tensors);
  std::string header = format_header(describe(order, metadata));
  std::uint64_t length = header.size();
  sys::AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const auto& item : order) {
    at::Tensor dense = item->second.detach().cpu().contiguous();
    file.write({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
  }
  file.commit();
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (!file || error)
    throw SystemError("cannot read " + path.string(), error ? error.value() : EACCES);
  try {
    return read_open_file(file, file_bytes);
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path.string(), problem.what()));
  }
}

}  // namespace lockstep::checkpoint
