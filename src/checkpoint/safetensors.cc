#include <lockstep/checkpoint/safetensors.h>

#include <lockstep/checkpoint/checksum.h>

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/safetensors_header.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian and written as they lie in memory");

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view key_begin = "crc32.";

// Large elements first, so that each tensor begins at a multiple of its own element size; then by
// name.
std::vector<NamedTensors::const_iterator> file_order(const NamedTensors& tensors) {
  std::vector<NamedTensors::const_iterator> order;
  for (auto item = tensors.begin(); item != tensors.end(); ++item) order.push_back(item);
  std::ranges::stable_sort(order, std::greater{},
                           [](const auto& item) { return item->second.element_size(); });
  return order;
}

// As the format's readers and writers agree: eight digits, so that a header keeps its length when
// the checksums are filled in.
std::string checksum_key(const std::string& tensor) { return formatted("{}{}", key_begin, tensor); }
std::string checksum_text(std::uint32_t checksum) { return formatted("{:08x}", checksum); }

SafetensorsHeader describe(const std::vector<NamedTensors::const_iterator>& order,
                           const Metadata& metadata, SafetensorsWriting how) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  for (const auto& [key, value] : metadata)
    check(!key.starts_with(key_begin),
          "write_safetensors: metadata '{}': names in {} are checksums", visible(key), key_begin);
  std::uint64_t offset = 0;
  for (const auto& item : order) {
    const at::Tensor& tensor = item->second;
    check(item->first != "__metadata__",
          "write_safetensors: a tensor cannot be called __metadata__");
    std::uint64_t end = offset + static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    header.entries.push_back(
        {item->first, tensor.scalar_type(), tensor.sizes().vec(), offset, end});
    if (how.checksums) header.metadata[checksum_key(item->first)] = checksum_text(0);
    offset = end;
  }
  return header;
}

std::span<const std::byte> bytes_in(const at::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()};
}

std::string read_header_text(sys::PlainFile& file) {
  std::uint64_t length = 0;
  if (file.read(std::as_writable_bytes(std::span(&length, 1))) < sizeof length)
    throw BadInput(formatted("expected at least 8 bytes, found {}", file.size()));
  if (length > max_header_bytes)
    throw BadInput(
        formatted("expected a header of at most {} bytes, found {}", max_header_bytes, length));
  if (file.size() < sizeof length || length > file.size() - sizeof length)
    throw BadInput(formatted("expected a header of {} bytes, the file has {} left", length,
                             file.size() - sizeof length));
  std::string text(length, '\0');
  if (file.read(std::as_writable_bytes(std::span(text))) < length)
    throw BadInput("the header cannot be read: the file became shorter");
  return text;
}

// The header has been checked, and so has that the file is as long as it says.
at::Tensor read_tensor(sys::PlainFile& file, const TensorEntry& entry) {
  at::Tensor tensor;
  try {
    tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  } catch (const std::exception&) {  // c10::Error, with a trace of the stack
    throw BadInput(formatted("tensor '{}': its {} bytes could not be allocated",
                             visible(entry.name), entry.end - entry.begin));
  }
  std::span<std::byte> bytes(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
  if (file.read(bytes) < bytes.size())
    throw BadInput(
        formatted("tensor '{}' cannot be read: the file became shorter", visible(entry.name)));
  return tensor;
}

void verify_checksum(const TensorEntry& entry, const at::Tensor& tensor, const Metadata& metadata) {
  auto expected = metadata.find(checksum_key(entry.name));
  if (expected == metadata.end()) return;
  std::string found = checksum_text(crc32_of(bytes_in(tensor)));
  check_input(found == expected->second,
              "tensor '{}' is damaged: expected {} bytes with crc32 {}, found {}",
              visible(entry.name), tensor.nbytes(), visible(expected->second, 16), found);
}

Safetensors read_open_file(sys::PlainFile& file, SafetensorsReading how) {
  std::string text = read_header_text(file);
  SafetensorsHeader header = parse_header(text, file.size() - sizeof(std::uint64_t) - text.size());
  Safetensors result;
  for (const TensorEntry& entry : header.entries) {
    if (!how.tensors) break;
    at::Tensor tensor = read_tensor(file, entry);
    if (how.verify) verify_checksum(entry, tensor, header.metadata);
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  std::erase_if(header.metadata,
                [](const auto& item) { return item.first.starts_with(key_begin); });
  result.metadata = std::move(header.metadata);
  return result;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata, SafetensorsWriting how) {
  std::vector<NamedTensors::const_iterator> order = file_order(tensors);
  SafetensorsHeader header = describe(order, metadata, how);
  std::string text = format_header(header);
  check(text.size() <= max_header_bytes,
        "write_safetensors: {} tensors take a header of {} bytes, the format has at most {}",
        order.size(), text.size(), max_header_bytes);
  std::uint64_t length = text.size();
  sys::AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text)));
  for (const auto& item : order) {
    at::Tensor dense = item->second.detach().cpu().contiguous();
    file.write(bytes_in(dense));
    if (how.checksums)
      header.metadata[checksum_key(item->first)] = checksum_text(crc32_of(bytes_in(dense)));
  }
  if (how.checksums) {
    text = format_header(header);
    file.write_at(sizeof length, std::as_bytes(std::span(text)));
  }
  file.commit();
}

Safetensors read_safetensors(const std::filesystem::path& path, SafetensorsReading how) {
  sys::PlainFile file(path);
  if (how.tensors) sys::check_fits_memory(path, file.size());
  try {
    return read_open_file(file, how);
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path.string(), problem.what()));
  }
}

}  // namespace lockstep::checkpoint
