#include "checkpoint/torch_archive.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/checksum.h"
#include "checkpoint/pickle.h"
#include "checkpoint/torch_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

// Reads the records of a zip archive that are stored uncompressed, as torch.save() writes it
// (PKWARE, APPNOTE.TXT, sections 4.3 to 4.5: local headers, central directory, ZIP64).
//
// Strict: refuses features that torch.save() does not use, and input that two readers could
// interpret differently. Never allocates memory according to an unchecked length in the archive.

struct ZipRecord {
  std::uint64_t begin = 0;  // of its bytes in the file
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

// Reads the bytes of `range`; throws BadInput if the file became shorter. The caller must have
// compared the range with the file's length.
void read_range(const sys::PlainFile& file, FileRange range, std::span<std::byte> into) {
  check_input(file.read_at(range.begin, into.first(range.bytes)) == range.bytes,
              "{} bytes at byte {} cannot be read: the file became shorter", range.bytes,
              range.begin);
}

std::string read_text(const sys::PlainFile& file, FileRange range) {
  std::string text(range.bytes, '\0');
  read_range(file, range, std::as_writable_bytes(std::span(text)));
  return text;
}

static_assert(std::endian::native == std::endian::little, "numbers of a zip are little-endian");

constexpr std::uint64_t most_directory_bytes = 256 << 20;
constexpr std::uint32_t end_mark = 0x06054b50, end64_mark = 0x06064b50, locator_mark = 0x07064b50;
constexpr std::uint32_t entry_mark = 0x02014b50, local_mark = 0x04034b50;
constexpr std::uint64_t end_bytes = 22, end64_bytes = 56, locator_bytes = 20;
constexpr std::uint64_t entry_bytes = 46, local_bytes = 30;

// Reads consecutive numbers; throws BadInput at the end of the text.
class ZipNumbers {
 public:
  explicit ZipNumbers(std::string_view text) : text_(text) {}

  template <class T>
  T next() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view take(std::uint64_t bytes) {
    if (bytes > text_.size()) throw BadInput("the archive's directory ends within an entry");
    std::string_view taken = text_.substr(0, bytes);
    text_.remove_prefix(bytes);
    return taken;
  }
  [[nodiscard]] bool empty() const { return text_.empty(); }

 private:
  std::string_view text_;
};

struct ZipDirectory {
  std::uint64_t begin = 0;  // in the archive
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
};

class ZipReader {
 public:
  ZipReader(const sys::PlainFile& file, FileRange range) : file_(file), range_(range) {}

  std::map<std::string, ZipRecord> read() {
    const ZipDirectory directory = find_directory();
    ZipNumbers numbers(directory_ = text(directory.begin, directory.bytes));
    for (std::uint64_t i = 0; i < directory.entries; ++i) read_entry(numbers, directory.begin);
    if (!numbers.empty())
      throw BadInput(formatted("the archive's directory has more bytes than its {} entries",
                               directory.entries));
    check_apart();
    return std::move(records_);
  }

 private:
  struct Stretch {
    std::uint64_t begin, end;
    std::string name;
  };

  std::string text(std::uint64_t begin, std::uint64_t bytes) const {
    return read_text(file_, {range_.begin + begin, bytes});
  }

  ZipDirectory find_directory() const {
    if (range_.bytes < end_bytes)
      throw BadInput(formatted("expected a zip archive, found {} bytes", range_.bytes));
    const std::uint64_t end = range_.bytes - end_bytes;
    const std::string closing = text(end, end_bytes);
    ZipNumbers numbers(closing);
    if (numbers.next<std::uint32_t>() != end_mark)
      throw BadInput("expected a zip archive that ends with its directory, found other bytes");
    const auto disk = numbers.next<std::uint16_t>(), first_disk = numbers.next<std::uint16_t>();
    const auto here = numbers.next<std::uint16_t>(), entries = numbers.next<std::uint16_t>();
    const auto bytes = numbers.next<std::uint32_t>(), begin = numbers.next<std::uint32_t>();
    check_input(disk == 0 && first_disk == 0 && here == entries,
                "expected a zip archive in one piece, found a part of one");
    ZipDirectory found{begin, bytes, entries};
    std::uint64_t behind = end;
    if (std::optional<ZipDirectory> large = find_large_directory(end, behind)) {
      check_input((entries == 0xffff || entries == large->entries) &&
                      (bytes == 0xffffffff || bytes == large->bytes) &&
                      (begin == 0xffffffff || begin == large->begin),
                  "the archive has two directories that differ");
      found = *large;
    }
    check_input(found.begin <= behind && found.bytes == behind - found.begin,
                "expected the archive's directory at bytes {} to {}, found {} bytes at byte {}",
                behind - std::min(behind, found.bytes), behind, found.bytes, found.begin);
    check_input(found.entries <= found.bytes / entry_bytes && found.bytes <= most_directory_bytes,
                "expected a directory of at most {} bytes, found {} entries in {} bytes",
                most_directory_bytes, found.entries, found.bytes);
    return found;
  }

  // Finds the directory of ZIP64 by its locator before the last record; sets `behind` to its end.
  std::optional<ZipDirectory> find_large_directory(std::uint64_t end, std::uint64_t& behind) const {
    if (end < locator_bytes + end64_bytes) return std::nullopt;
    const std::string locator = text(end - locator_bytes, locator_bytes);
    ZipNumbers numbers(locator);
    if (numbers.next<std::uint32_t>() != locator_mark) return std::nullopt;
    const auto disk = numbers.next<std::uint32_t>();
    const auto place = numbers.next<std::uint64_t>();
    const auto disks = numbers.next<std::uint32_t>();
    check_input(disk == 0 && disks <= 1 && place == end - locator_bytes - end64_bytes,
                "expected the archive's ZIP64 record before its locator, found it at byte {}",
                place);
    const std::string record = text(place, end64_bytes);
    ZipNumbers fields(record);
    check_input(fields.next<std::uint32_t>() == end64_mark &&
                    fields.next<std::uint64_t>() == end64_bytes - 12,
                "expected the archive's ZIP64 record at byte {}, found other bytes", place);
    fields.take(2 + 2);  // versions
    const auto this_disk = fields.next<std::uint32_t>(), first = fields.next<std::uint32_t>();
    const auto here = fields.next<std::uint64_t>(), entries = fields.next<std::uint64_t>();
    check_input(this_disk == 0 && first == 0 && here == entries,
                "expected a zip archive in one piece, found a part of one");
    behind = place;
    const auto bytes = fields.next<std::uint64_t>();
    return ZipDirectory{fields.next<std::uint64_t>(), bytes, entries};
  }

  struct Entry {
    std::string name;
    std::uint64_t packed, bytes, local;
    std::uint32_t crc32;
  };

  // Values that do not fit their field are in an extra field of ZIP64.
  static void widen(Entry& entry, std::string_view extra) {
    ZipNumbers fields(extra);
    bool is_wide = false;
    while (!fields.empty()) {
      const auto kind = fields.next<std::uint16_t>();
      ZipNumbers field(fields.take(fields.next<std::uint16_t>()));
      if (kind != 1) continue;
      check_input(!std::exchange(is_wide, true), "record '{}' has two ZIP64 fields",
                  escaped(entry.name));
      for (std::uint64_t* number : {&entry.bytes, &entry.packed, &entry.local})
        if (*number == 0xffffffff) *number = field.next<std::uint64_t>();
    }
  }

  void read_entry(ZipNumbers& numbers, std::uint64_t directory_begin) {
    check_input(numbers.next<std::uint32_t>() == entry_mark,
                "expected an entry of the archive's directory, found other bytes");
    numbers.take(2 + 2);  // versions
    const auto flags = numbers.next<std::uint16_t>(), method = numbers.next<std::uint16_t>();
    numbers.take(2 + 2);  // time and date
    Entry entry{};
    entry.crc32 = numbers.next<std::uint32_t>();
    entry.packed = numbers.next<std::uint32_t>();
    entry.bytes = numbers.next<std::uint32_t>();
    const auto name = numbers.next<std::uint16_t>(), extra = numbers.next<std::uint16_t>();
    const auto comment = numbers.next<std::uint16_t>(), disk = numbers.next<std::uint16_t>();
    numbers.take(2 + 4);  // attributes
    entry.local = numbers.next<std::uint32_t>();
    entry.name = numbers.take(name);
    widen(entry, numbers.take(extra));
    numbers.take(comment);
    const std::string shown = escaped(entry.name);
    check_input(
        !entry.name.empty() && is_utf8(entry.name) && entry.name.find('\0') == std::string::npos,
        "expected a record's name in UTF-8, found '{}'", shown);
    check_input(
        entry.name.find("/code/") == std::string::npos && !entry.name.ends_with("/constants.pkl"),
        "expected an archive of torch.save(), found one of TorchScript, as written by "
        "torch.jit.save() and LibTorch's torch::save(): save a state_dict instead");
    check_input((flags & 0x2041) == 0, "record '{}' is encrypted", shown);
    check_input(method == 0 && entry.packed == entry.bytes && disk == 0,
                "record '{}' is compressed, expected it stored as torch.save() does", shown);
    add(entry, flags, directory_begin);
  }

  void add(const Entry& entry, std::uint16_t flags, std::uint64_t directory_begin) {
    const std::string shown = escaped(entry.name);
    check_input(entry.local <= directory_begin && directory_begin - entry.local >= local_bytes,
                "record '{}' begins at byte {}, expected it before the directory at byte {}", shown,
                entry.local, directory_begin);
    const std::string header = text(entry.local, local_bytes);
    ZipNumbers numbers(header);
    check_input(numbers.next<std::uint32_t>() == local_mark, "record '{}' has no header at byte {}",
                shown, entry.local);
    numbers.take(2);
    check_input(numbers.next<std::uint16_t>() == flags && numbers.next<std::uint16_t>() == 0,
                "record '{}' differs from the directory's entry", shown);
    numbers.take(2 + 2 + 4 + 4 + 4);
    const auto name = numbers.next<std::uint16_t>(), extra = numbers.next<std::uint16_t>();
    const std::uint64_t before = local_bytes + name + extra;
    const std::uint64_t left = directory_begin - entry.local;
    check_input(before <= left && entry.bytes <= left - before,
                "record '{}' has {} bytes, expected at most {} before the directory", shown,
                entry.bytes, left - std::min(left, before));
    check_input(name == entry.name.size() && text(entry.local + local_bytes, name) == entry.name,
                "record '{}' has another name in its header", shown);
    const std::uint64_t begin = entry.local + before;
    const ZipRecord record{range_.begin + begin, entry.bytes, entry.crc32};
    check_input(records_.emplace(entry.name, record).second,
                "expected different names, found two records named '{}'", shown);
    stretches_.push_back({entry.local, begin + entry.bytes, entry.name});
  }

  void check_apart() {
    std::ranges::sort(stretches_, {}, &Stretch::begin);
    for (std::size_t i = 1; i < stretches_.size(); ++i)
      check_input(stretches_[i].begin >= stretches_[i - 1].end, "records '{}' and '{}' overlap",
                  escaped(stretches_[i - 1].name), escaped(stretches_[i].name));
  }

  const sys::PlainFile& file_;
  const FileRange range_;
  std::string directory_;
  std::map<std::string, ZipRecord> records_;
  std::vector<Stretch> stretches_;
};

// Reads the archive that fills `range` of the file exactly. Each record's bytes lie in the range,
// before the directory, and no two overlap. Throws BadInput without naming the file if it is not a
// zip archive, is compressed, encrypted or split, or has two records with the same name or a name
// that is not UTF-8.
std::map<std::string, ZipRecord> read_zip(const sys::PlainFile& file, FileRange range) {
  return ZipReader(file, range).read();
}

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
                "expected a byteorder of little or big, found '{}'", escaped(found));
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
    const std::string shown = escaped(key);
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
