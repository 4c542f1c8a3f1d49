// Whole files: read, and written so that nobody ever sees half of one. Every call blocks on the
// disk. Errors: SystemError that names the path.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace lockstep::sys {

// The whole content; also of files that do not know their size (/proc, pipes).
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

// The folder and those above it, where they are missing; those that it makes, with this mode (less
// the umask), last through a power cut.
void make_directories(const std::filesystem::path& path, mode_t mode = 0777);

// Brings an open file to the disk. File systems that cannot flush it are taken as they are.
void flush_file(int file, std::string_view name);

// Makes the names in it last through a power cut.
void flush_folder(const std::filesystem::path& folder);

// Renames and makes it last through a power cut. `to` is replaced when it is a file, or an empty
// folder where `from` is a folder; both must be on one filesystem. When the folder above `to`
// cannot be flushed, `from` has the new name all the same, and the error says that this may not
// last.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// A file that appears under its name only when it is complete. It is written under a temporary name
// in the same folder (".NAME.RANDOM.partial"); commit() flushes it to the disk and renames it.
// Without commit() (an error, a full disk, an exception) the temporary file is removed and an older
// file of that name stays as it was.
class AtomicFile {
 public:
  // `mode` less the umask is the file's.
  explicit AtomicFile(std::filesystem::path path, mode_t mode = 0666);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Goes straight to the system: pass much at once.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Over what was written before, `offset` bytes from the beginning; the next write() goes on where
  // the last one ended.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Brings what was written to the disk, so that a commit() after it takes no time: of several
  // files, each is flushed before the first is renamed.
  void flush();
  void commit();

  // All in one.
  static void write(const std::filesystem::path& path, std::string_view text);
  // The same without waiting for the disk: whole for all who look, and also when this process is
  // killed, but not through a power cut.
  static void write_for_now(const std::filesystem::path& path, std::string_view text,
                            mode_t mode = 0666);

 private:
  std::filesystem::path path_;
  std::string temporary_;
  FileDescriptor file_;
};

}  // namespace lockstep::sys
