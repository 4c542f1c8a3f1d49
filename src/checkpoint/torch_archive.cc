#include "checkpoint/torch_archive.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/checksum.h"
#include "checkpoint/pickle.h"
#include "checkpoint/torch_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view pickle_name = "/data.pkl";

std::span<std::byte> raw_bytes(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()};
}

// Throws for files whose name or beginning is that of another PyTorch format.
void check_kind(const sys::PlainFile& file, FileRange range) {
  char first = 0;
  if (range.bytes == 0) throw BadInput("expected a file of torch.save(), found an empty one");
  read_range(file, {range.begin, 1}, std::as_writable_bytes(std::span(&first, 1)));
  check_input(
      first != '\x80',
      "expected the zip format of PyTorch 1.6 and later, found a pickle: torch.save() of an "
      "older version, or with _use_new_zipfile_serialization=False; load it and save it "
      "again in Python");
}

class Archive {
 public:
  Archive(std::shared_ptr<const TorchSource> source, FileRange range)
      : source_(std::move(source)), range_(range) {
    check_kind(source_->file, range);
    records_ = read_zip(source_->file, range);
    name_ = find_name();
    // With torch.serialization.set_crc32_options(False), all checksums are 0.
    has_checksums_ =
        std::ranges::any_of(records_, [](const auto& item) { return item.second.crc32 != 0; });
    const auto order = records_.find(name_ + "/byteorder");
    if (order == records_.end()) return;
    check_input(order->second.bytes <= 6, "expected a byteorder of little or big, found {} bytes",
                order->second.bytes);
    const std::string found = text(order->second);
    check_input(found == "little" || found == "big",
                "expected a byteorder of little or big, found '{}'", visible(found));
    is_big_ = found == "big";
  }

  c10::IValue read() {
    const ZipRecord& record = records_.at(name_ + std::string(pickle_name));
    check_input(record.bytes <= Pickle::most_bytes,
                "expected a data.pkl of at most {} bytes, "
                "found {}",
                Pickle::most_bytes, record.bytes);
    const Pickle pickle(text(record), torch_globals());
    return values_of(pickle, [this](const std::string& key, std::uint64_t bytes,
                                    at::ScalarType dtype) { return storage(key, bytes, dtype); });
  }

 private:
  struct Known {
    at::Tensor bytes;
    at::ScalarType dtype;
  };

  // Returns the folder of the archive that contains all records.
  std::string find_name() const {
    std::string name;
    for (const auto& [path, record] : records_)
      if (path.ends_with(pickle_name) && path.find('/') == path.size() - pickle_name.size())
        name = path.substr(0, path.size() - pickle_name.size());
    const auto outside = std::ranges::find_if(
        records_, [&](const auto& item) { return !item.first.starts_with(name + "/"); });
    check_input(!name.empty() && outside == records_.end(),
                "expected an archive of torch.save(), which has one folder with a data.pkl");
    return name;
  }

  std::string text(const ZipRecord& record) const {
    std::string bytes = read_text(source_->file, {record.begin, record.bytes});
    compare(record, std::as_bytes(std::span(bytes)), "its pickle");
    return bytes;
  }

  void compare(const ZipRecord& record, std::span<const std::byte> bytes,
               const std::string& shown) const {
    if (!source_->how.verify || !has_checksums_) return;
    const std::uint32_t found = crc32_of(bytes);
    check_input(found == record.crc32, "{} is damaged: expected checksum {:08x}, found {:08x}",
                shown, record.crc32, found);
  }

  at::Tensor storage(const std::string& key, std::uint64_t bytes, at::ScalarType dtype) {
    const std::string shown = visible(key);
    if (auto known = storages_.find(key); known != storages_.end()) {
      check_input(known->second.bytes.nbytes() == bytes,
                  "storage '{}' has two sizes, {} and {} bytes", shown,
                  known->second.bytes.nbytes(), bytes);
      check_input(!is_big_ || known->second.dtype == dtype,
                  "storage '{}' has two dtypes, so its big-endian bytes cannot be swapped", shown);
      return known->second.bytes;
    }
    const auto record = records_.find(name_ + "/data/" + key);
    check_input(record != records_.end(), "the archive has no storage '{}'", shown);
    check_input(record->second.bytes == bytes, "storage '{}': expected {} bytes, found {}", shown,
                bytes, record->second.bytes);
    const at::Tensor read = bytes_in(record->second, shown);
    if (is_big_) swap(raw_bytes(read), dtype);
    return storages_.emplace(key, Known{read, dtype}).first->second.bytes;
  }

  at::Tensor bytes_in(const ZipRecord& record, const std::string& shown) const {
    const auto size = static_cast<std::int64_t>(record.bytes);
    at::Tensor bytes;
    // The writer aligns each record to 64 bytes within its own archive.
    if (source_->how.map && record.begin % 16 == 0 && record.bytes > 0 && !is_big_) {
      const auto place = source_->mapped.bytes().subspan(record.begin, record.bytes);
      bytes = at::from_blob(
          const_cast<std::byte*>(place.data()), {size}, [source = source_](void*) {},
          at::TensorOptions(at::kByte));
    } else {
      try {
        bytes = at::empty({size}, at::TensorOptions(at::kByte));
      } catch (const std::exception&) {  // c10::Error, with a stack trace
        throw BadInput(
            formatted("storage '{}': its {} bytes could not be allocated", shown, record.bytes));
      }
      read_range(source_->file, {record.begin, record.bytes}, raw_bytes(bytes));
    }
    compare(record, raw_bytes(bytes), formatted("storage '{}'", shown));
    return bytes;
  }

  static void swap(std::span<std::byte> bytes, at::ScalarType dtype) {
    const std::size_t element = c10::elementSize(dtype) / (c10::isComplexType(dtype) ? 2 : 1);
    for (std::size_t at = 0; at + element <= bytes.size(); at += element)
      std::ranges::reverse(bytes.subspan(at, element));
  }

  const std::shared_ptr<const TorchSource> source_;
  const FileRange range_;
  std::map<std::string, ZipRecord> records_;
  std::string name_;
  bool is_big_ = false, has_checksums_ = false;
  std::map<std::string, Known> storages_;
};

}  // namespace

TorchSource::TorchSource(const std::filesystem::path& path, TorchReading reading)
    : file(path), how(reading) {
  if (how.map) mapped = sys::MappedFile::private_copy(file);
  if (!how.map) sys::check_fits_memory(path, file.size());
}

c10::IValue read_archive(const std::shared_ptr<const TorchSource>& source, FileRange range) {
  return Archive(source, range).read();
}

}  // namespace lockstep::checkpoint
