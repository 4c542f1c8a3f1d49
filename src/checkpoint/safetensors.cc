#include <lockstep/checkpoint/safetensors.h>

#include "checkpoint/checksum.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/tensor_source.h"
#include "sys/files.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian and written as they lie in memory");

namespace lockstep::checkpoint {
namespace {

// Sorts by element size, largest first, so that each tensor begins at a multiple of its own element
// size; then by name.
std::vector<TensorSources::const_iterator> file_order(const TensorSources& tensors) {
  std::vector<TensorSources::const_iterator> order;
  for (auto item = tensors.begin(); item != tensors.end(); ++item) order.push_back(item);
  std::ranges::stable_sort(order, std::greater{},
                           [](const auto& item) { return c10::elementSize(item->second.dtype); });
  return order;
}

SafetensorsHeader describe(const std::vector<TensorSources::const_iterator>& order,
                           const Metadata& metadata) {
  check_metadata(metadata);
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::uint64_t offset = 0;
  for (const auto& item : order) {
    const std::uint64_t end = offset + item->second.bytes();
    header.entries.push_back({item->first, item->second.dtype, item->second.sizes, offset, end});
    offset = end;
  }
  return header;
}

std::span<const std::byte> bytes_in(const at::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()};
}

}  // namespace

std::uint64_t TensorSource::bytes() const {
  std::uint64_t bytes = c10::elementSize(dtype);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

TensorSources sources_of(const NamedTensors& tensors) {
  TensorSources sources;
  for (const auto& [name, tensor] : tensors) {
    check(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta(),
          "write_safetensors: tensor '{}' must be dense, found {}", escaped(name),
          !tensor.defined()  ? "undefined"
          : tensor.is_meta() ? "on the meta device"
                             : "sparse or of another layout");
    sources.emplace(name, TensorSource{tensor.scalar_type(), tensor.sizes().vec(),
                                       [tensor = tensor] { return tensor; }});
  }
  return sources;
}

SafetensorsHeader write_tensors(sys::AtomicFile& file, const TensorSources& tensors,
                                const Metadata& metadata, SafetensorsWriting how) {
  std::vector<TensorSources::const_iterator> order = file_order(tensors);
  SafetensorsHeader header = describe(order, metadata);
  std::vector<std::uint32_t> checksums(order.size());
  if (how.checksums) add_checksums(header, checksums);
  std::string text = format_header(header);
  std::uint64_t length = text.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text)));
  for (std::size_t i = 0; i < order.size(); ++i) {
    at::Tensor dense = as_in_file(order[i]->second.values());
    file.write(bytes_in(dense));
    if (how.checksums) checksums[i] = crc32_of(bytes_in(dense));
  }
  if (how.checksums) {
    add_checksums(header, checksums);
    text = format_header(header);
    file.write_at(sizeof length, std::as_bytes(std::span(text)));
  }
  return header;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata, SafetensorsWriting how) {
  const TensorSources sources = sources_of(tensors);
  check_metadata(metadata);
  (void)format_header(describe(file_order(sources), metadata));  // throws before a file is made
  sys::AtomicFile file(path);
  write_tensors(file, sources, metadata, how);
  file.commit();
}

}  // namespace lockstep::checkpoint
