// One archive of torch.save(): a whole .pt file, or a range of a larger one.
#pragma once

#include "sys/mapped_file.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/torch_file.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace lockstep::checkpoint {

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

// A range of a file.
struct FileRange {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// Reads the bytes of `range`; throws BadInput if the file became shorter. The caller must have
// compared the range with the file's length.
void read_range(const sys::PlainFile& file, FileRange range, std::span<std::byte> into);
[[nodiscard]] std::string read_text(const sys::PlainFile& file, FileRange range);

// Reads the archive that fills `range` of the file exactly. Each record's bytes lie in the range,
// before the directory, and no two overlap. Throws BadInput without naming the file if it is not a
// zip archive, is compressed, encrypted or split, or has two records with the same name or a name
// that is not UTF-8.
[[nodiscard]] std::map<std::string, ZipRecord> read_zip(const sys::PlainFile& file,
                                                        FileRange range);

// An open file, kept alive by tensors that are mapped to it.
struct TorchSource {
  TorchSource(const std::filesystem::path& path, TorchReading how);

  sys::PlainFile file;
  TorchReading how;
  sys::MappedFile mapped;  // empty unless how.map
};

// Throws BadInput without naming the file.
[[nodiscard]] c10::IValue read_archive(const std::shared_ptr<const TorchSource>& source,
                                       FileRange range);

}  // namespace lockstep::checkpoint
