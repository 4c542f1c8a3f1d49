#include "sys/positioned_file.h"

#include "base/format.h"
#include "base/text.h"
#include "sys/files.h"
#include "sys/signals.h"

#include <lockstep/base/error.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

// Returns true if the filesystem, the kernel or a container does not allow this kind of call at
// all.
bool is_refusal(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == EPERM ||
         error == EACCES;
}

// Returns 0 or an error number. If space cannot be reserved, only sets the file's length.
int reserve_space(int file, std::uint64_t bytes) {
  if (bytes == 0) return 0;
  const ErrorInsteadOfSignal quiet(SIGXFSZ);
  int result = 0;
  do {
    result = ::fallocate(file, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  if (!is_refusal(errno)) return errno;
  return ::ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace

PositionedFile PositionedFile::create(std::filesystem::path path) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) throw SystemError("creating " + path.string(), errno);
  return {std::move(path), std::move(file)};
}

PositionedFile PositionedFile::open_to_write(std::filesystem::path path) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file && errno != ENOENT) throw SystemError("opening " + path.string(), errno);
  return {std::move(path), std::move(file)};
}

void PositionedFile::reserve(std::uint64_t bytes) {
  if (int error = reserve_space(file_.get(), bytes); error != 0)
    throw SystemError(formatted("reserving {} for {}",
                                format_bytes(static_cast<std::int64_t>(bytes)), path_.string()),
                      error);
}

void PositionedFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  const ErrorInsteadOfSignal quiet(SIGXFSZ);
  while (!bytes.empty()) {
    ssize_t count = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("writing " + path_.string(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void PositionedFile::flush() { flush_file(file_.get(), path_.string()); }

}  // namespace lockstep::sys
