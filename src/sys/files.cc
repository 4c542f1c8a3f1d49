#include "sys/files.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/plain_file.h"
#include "sys/random_bytes.h"
#include "sys/signals.h"
#include "sys/whole_call.h"

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Creates a new file beside `path` and sets `name` to its path. (mkstemp would create a file that
// only its owner can read.)
FileDescriptor create_beside(const fs::path& path, mode_t mode, std::string& name) {
  for (;;) {
    name = (folder_of(path) /
            formatted(".{}.{}.partial", path.filename().string(), hexadecimal(random_bytes(8))))
               .string();
    FileDescriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file) return file;
    if (errno != EEXIST) throw SystemError("creating a file beside " + path.string(), errno);
  }
}

}  // namespace

void write_all_at(int file, std::uint64_t offset, std::span<const std::byte> bytes,
                  std::string_view name) {
  const ScopedSignalBlock quiet(SIGXFSZ);
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw SystemError(formatted("writing {}", name), count < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void flush_file(int file, std::string_view name) {
  int result = 0;
  while ((result = ::fsync(file)) != 0 && errno == EINTR) {
  }
  // Some filesystems cannot flush folders, or anything at all; then there is nothing more to do.
  const bool is_impossible =
      errno == EINVAL || errno == EROFS || errno == EOPNOTSUPP || errno == ENOSYS;
  if (result != 0 && !is_impossible)
    throw SystemError(formatted("flushing {} to disk", name), errno);
}

void flush_folder(const fs::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) throw SystemError("opening folder " + folder.string(), errno);
  flush_file(file.get(), folder.string());
}

std::string read_file(const fs::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw SystemError("opening " + path.string(), errno);
  struct stat status {};
  std::string content;
  if (::fstat(file.get(), &status) == 0 && status.st_size > 0)
    content.resize(static_cast<std::size_t>(status.st_size) + 1);
  std::size_t used = 0;
  for (;;) {
    if (used == content.size()) content.resize(std::max<std::size_t>(4096, 2 * content.size()));
    ssize_t count = ::read(file.get(), content.data() + used, content.size() - used);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("reading " + path.string(), errno);
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
  }
  content.resize(used);
  return content;
}

bool exists(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) throw SystemError("looking at " + path.string(), error.value());
  return found;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) throw SystemError("looking at " + path.string(), error.value());
  return fs::is_directory(status);
}

std::vector<fs::path> entries_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    found.push_back(entry->path());
  if (error) throw SystemError("listing " + folder.string(), error.value());
  std::ranges::sort(found);
  return found;
}

void remove_all(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw SystemError("removing " + path.string(), error.value());
}

fs::path own_program() {
  constexpr const char* link = "/proc/self/exe";
  std::error_code error;
  fs::path program = fs::read_symlink(link, error);
  if (error) throw SystemError(formatted("reading {}", link), error.value());
  return program;
}

void make_directories(const fs::path& path, mode_t mode) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path folder = path; !folder.empty() && !fs::is_directory(folder, error);
       folder = folder.parent_path()) {
    if (folder.has_filename()) missing.push_back(folder);
    if (!folder.has_relative_path()) break;
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (::mkdir(folder->c_str(), mode) != 0) {
      const int problem = errno;
      // Another process may have created the folder meanwhile.
      if (problem != EEXIST || !fs::is_directory(*folder, error))
        throw SystemError("making folder " + path.string(), problem);
      continue;
    }
    flush_folder(folder_of(*folder));
  }
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw SystemError("renaming " + from.string() + " to " + to.string(), errno);
  flush_folder(folder_of(to));
}

namespace {

// Returns the path that a new file gets: `path`, or the path at the end of its links. Throws
// BadInput for anything but a file, because rename() would replace a pipe or a device itself.
fs::path place_to_write(fs::path path) {
  struct stat status {};
  const int error = ::stat(path.c_str(), &status) == 0 ? 0 : errno;
  if (error != 0 && error != ENOENT && error != ENOTDIR)
    throw SystemError("looking at " + path.string(), error);
  check_input(error != 0 || S_ISREG(status.st_mode),
              "writing {}: expected a file or nothing, found {}", path.string(),
              kind_of(status.st_mode));
  constexpr int most_links = 40;  // as in the kernel
  std::error_code no_link;
  for (int link = 0; link < most_links && fs::is_symlink(path, no_link); ++link) {
    const fs::path target = fs::read_symlink(path, no_link);
    if (no_link) break;
    path = folder_of(path) / target;
  }
  return path;
}

}  // namespace

AtomicFile::AtomicFile(fs::path path, mode_t mode)
    : path_(place_to_write(std::move(path))), file_(create_beside(path_, mode, temporary_)) {}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(temporary_.c_str());
}

int AtomicFile::open_file() const {
  if (!file_) throw InvalidArgument("writing " + path_.string() + ": it is committed already");
  return file_.get();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write_at(written_, bytes);
  written_ += bytes.size();
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  write_all_at(open_file(), offset, bytes, path_.string());
}

void AtomicFile::flush() { flush_file(open_file(), path_.string()); }

void AtomicFile::commit() {
  flush();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw SystemError("renaming to " + path_.string(), errno);
  file_.reset();
  flush_folder(folder_of(path_));
}

void AtomicFile::write(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

// Closes the file before it gets its name: a network filesystem shows written data to other hosts
// on close.
void AtomicFile::write_for_now(const fs::path& path, std::string_view text, mode_t mode) {
  AtomicFile file(path, mode);
  file.write(text);
  const int copy = ::fcntl(file.file_.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0 || ::close(copy) != 0) throw SystemError("closing " + path.string(), errno);
  if (::rename(file.temporary_.c_str(), file.path_.c_str()) != 0)
    throw SystemError("renaming to " + path.string(), errno);
  file.file_.reset();
}

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
  const ScopedSignalBlock quiet(SIGXFSZ);
  const int error = whole_call(
      [&] { return ::fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno; });
  if (error == 0 || !is_refusal(error)) return error;
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
  write_all_at(file_.get(), offset, bytes, path_.string());
}

void PositionedFile::flush() { flush_file(file_.get(), path_.string()); }

}  // namespace lockstep::sys
