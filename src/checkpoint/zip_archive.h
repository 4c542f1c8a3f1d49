// The records of a zip archive whose records are stored, not compressed, as torch.save() writes it
// (PKWARE, APPNOTE.TXT, sections 4.3 to 4.5: local headers, central directory, ZIP64).
//
// Closed: what torch.save() does not write is refused, and whatever two readers could understand in
// two ways. Nothing is allocated by a length that the archive only claims.
#pragma once

#include "sys/plain_file.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace lockstep::checkpoint {

struct ZipRecord {
  std::uint64_t begin = 0;  // of its bytes, in the file
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

// A stretch of a file.
struct FileRange {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// The bytes of `range`; BadInput when the file became shorter. The caller has compared the length
// with the file's.
void read_range(const sys::PlainFile& file, FileRange range, std::span<std::byte> into);
[[nodiscard]] std::string read_text(const sys::PlainFile& file, FileRange range);

// The archive that fills `range` of the file, from its first byte to its last. Each record's bytes
// lie in the range, before the directory, and no two overlap. Throws BadInput without naming the
// file: for what is no zip archive, is compressed, encrypted or divided, has two records of a name
// or a name that is no UTF-8.
[[nodiscard]] std::map<std::string, ZipRecord> read_zip(const sys::PlainFile& file,
                                                        FileRange range);

}  // namespace lockstep::checkpoint
