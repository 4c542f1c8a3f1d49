// Reads and writes whole files; readers never see a partially written file. Every call blocks on
// disk I/O. Throws SystemError, which names the path.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace lockstep::sys {

// Returns the whole content; also works for files whose size is unknown (/proc, pipes).
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

// Creates the folder and its missing parents with this mode (less the umask). The new folders
// survive a power failure.
void make_directories(const std::filesystem::path& path, mode_t mode = 0777);

// Answers a question about a path, following links. Unlike the functions of std::filesystem, throws
// SystemError if the system gives no answer (the path leads through a folder that this process may
// not search, or through a link to itself).
[[nodiscard]] bool exists(const std::filesystem::path& path);
[[nodiscard]] bool is_folder(const std::filesystem::path& path);

// Returns the paths in a folder, sorted by name.
[[nodiscard]] std::vector<std::filesystem::path> entries_in(const std::filesystem::path& folder);

// Removes a file, or a folder with everything in it. Does nothing if the path does not exist.
void remove_all(const std::filesystem::path& path);

// Returns the file of the program that this process runs.
[[nodiscard]] std::filesystem::path own_program();

// Writes all bytes to an open file. `name` is the file's name in the SystemError.
void write_all_at(int file, std::uint64_t offset, std::span<const std::byte> bytes,
                  std::string_view name);

// Flushes an open file to disk. Does nothing if the filesystem does not support flushing.
void flush_file(int file, std::string_view name);

// Flushes a folder, so that new names in it survive a power failure.
void flush_folder(const std::filesystem::path& folder);

// Renames a file or folder so that the new name survives a power failure. `to` is replaced if it is
// a file, or if both are folders and `to` is empty. `from` and `to` must be on the same filesystem.
// If the parent folder of `to` cannot be flushed, `from` is renamed nevertheless, and the exception
// says that the new name may not be durable.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// A file that is written atomically. The file is written under a temporary name in the same folder
// (".NAME.RANDOM.partial"); commit() flushes it to disk and renames it. Without commit() (because
// of an error, a full disk, an exception) the temporary file is removed and an existing file of
// that name is unchanged. If the path is a link, the file that the link names is written, and the
// link stays.
class AtomicFile {
 public:
  // Creates the temporary file. The file's mode is `mode` less the umask. Throws BadInput if the
  // path leads to a folder, a pipe, a socket or a device.
  explicit AtomicFile(std::filesystem::path path, mode_t mode = 0666);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends bytes. Unbuffered: pass large blocks.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Overwrites bytes that were already written, `offset` bytes from the beginning. Does not change
  // the position of the next write().
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Flushes the written bytes to disk, so that a later commit() is fast. With several files, flush
  // each of them before the first commit().
  void flush();
  void commit();

  // Writes a whole file and commits it.
  static void write(const std::filesystem::path& path, std::string_view text);
  // Like write(), but does not wait for the disk: atomic for readers, also if this process is
  // killed, but not durable after a power failure.
  static void write_for_now(const std::filesystem::path& path, std::string_view text,
                            mode_t mode = 0666);

 private:
  // Throws InvalidArgument if the file is committed.
  [[nodiscard]] int open_file() const;

  std::filesystem::path path_;
  std::string temporary_;
  FileDescriptor file_;
  std::uint64_t written_ = 0;  // by write()
};

// A file that several processes write or read concurrently, each at its own offsets.
class PositionedFile {
 public:
  PositionedFile() = default;
  // Creates a new file for writing.
  [[nodiscard]] static PositionedFile create(std::filesystem::path path);
  // Opens an existing file for writing. If there is no such file, the result is not open.
  [[nodiscard]] static PositionedFile open_to_write(std::filesystem::path path);

  [[nodiscard]] bool is_open() const { return static_cast<bool>(file_); }
  // Sets the length of an empty file, and reserves the space on disk if the filesystem supports it.
  // A full disk then fails here rather than later.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Blocks until all written bytes are on disk.
  void flush();

 private:
  PositionedFile(std::filesystem::path path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace lockstep::sys
