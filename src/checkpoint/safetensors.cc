#include <lockstep/checkpoint/safetensors.h>

#include "checkpoint/checksum.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shards.h"
#include "checkpoint/tensor_source.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
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

// The header must have been checked, including that the file is as long as it says.
at::Tensor read_tensor(sys::PlainFile& file, const TensorEntry& entry) {
  at::Tensor tensor;
  try {
    tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  } catch (const std::exception&) {  // c10::Error, with a stack trace
    throw BadInput(formatted("tensor '{}': its {} bytes could not be allocated",
                             visible(entry.name), entry.end - entry.begin));
  }
  std::span<std::byte> bytes(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
  if (file.read(bytes) < bytes.size())
    throw BadInput(
        formatted("tensor '{}' cannot be read: the file became shorter", visible(entry.name)));
  return tensor;
}

Safetensors read_open_file(sys::PlainFile& file, SafetensorsReading how) {
  std::string text = read_header_text(file);
  SafetensorsHeader header = parse_header(text, file.size() - sizeof(std::uint64_t) - text.size());
  Safetensors result;
  for (const TensorEntry& entry : header.entries) {
    if (!how.tensors) break;
    at::Tensor tensor = read_tensor(file, entry);
    if (how.verify && checksum_in(header.metadata, entry) != nullptr)
      compare_checksum(header.metadata, entry, crc32_of(bytes_in(tensor)));
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  result.metadata = without_checksums(std::move(header.metadata));
  return result;
}

// Checks that a file, or all of its shards, fit the memory.
void check_fits(const std::vector<std::filesystem::path>& files) {
  std::uint64_t bytes = 0;
  for (const std::filesystem::path& file : files) bytes += sys::PlainFile(file).size();
  sys::check_fits_memory(files.front(), bytes);
}

Safetensors read_one(const std::filesystem::path& path, SafetensorsReading how) {
  sys::PlainFile file(path);
  try {
    return read_open_file(file, how);
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path.string(), problem.what()));
  }
}

// Returns exactly the tensors that the index names, with the metadata of the first shard.
Safetensors read_shards(const std::filesystem::path& index, const WeightMap& map,
                        const std::vector<std::filesystem::path>& files, SafetensorsReading how) {
  Safetensors all;
  for (const std::filesystem::path& file : files) {
    Safetensors one = read_one(file, how);
    if (&file == &files.front()) all.metadata = std::move(one.metadata);
    for (auto& [name, tensor] : one.tensors) {
      const auto named = map.find(name);
      check_input(named != map.end() && named->second == file.filename().string(),
                  "{}: {} has the tensor '{}', which the index does not name there", index.string(),
                  file.filename().string(), visible(name));
      all.tensors.emplace(name, std::move(tensor));
    }
  }
  for (const auto& [name, file] : map)
    check_input(!how.tensors || all.tensors.contains(name), "{}: tensor '{}' is not in {}",
                index.string(), visible(name), visible(file, 200));
  return all;
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
          "write_safetensors: tensor '{}' must be dense, found {}", visible(name),
          !tensor.defined()  ? "undefined"
          : tensor.is_meta() ? "on the meta device"
                             : "sparse or of another layout");
    sources.emplace(name, TensorSource{tensor.scalar_type(), tensor.sizes().vec(),
                                       [tensor = tensor] { return tensor; }});
  }
  return sources;
}

void write_tensors(sys::AtomicFile& file, const TensorSources& tensors, const Metadata& metadata,
                   SafetensorsWriting how) {
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

Safetensors read_safetensors(const std::filesystem::path& path, SafetensorsReading how) {
  WeightMap map;
  std::vector<std::filesystem::path> files{path};
  if (has_index(path)) {
    map = read_weight_map(index_path(path));
    files = files_of(map, index_path(path));
  }
  if (how.tensors) check_fits(files);
  return map.empty() ? read_one(path, how) : read_shards(index_path(path), map, files, how);
}

}  // namespace lockstep::checkpoint
