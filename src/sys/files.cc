#include "sys/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// What 0666 becomes under this process's umask: mkostemp makes files that only their owner may read.
mode_t usual_mode() {
  mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

void flush(int file, const std::string& name) {
  // Some filesystems cannot flush folders and say EINVAL: there is nothing better to be done there.
  if (::fsync(file) != 0 && errno != EINVAL && errno != EROFS) throw SystemError("flushing " + name + " to disk", errno);
}

void flush_folder(const fs::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) throw SystemError("opening folder " + folder.string(), errno);
  flush(file.get(), folder.string());
}

}  // namespace

std::string read_file(const fs::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw SystemError("opening " + path.string(), errno);
  struct stat status {};
  std::string content;
  if (::fstat(file.get(), &status) == 0 && status.st_size > 0) content.resize(static_cast<std::size_t>(status.st_size) + 1);
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

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw SystemError("making folder " + path.string(), error.value());
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw SystemError("renaming " + from.string() + " to " + to.string(), errno);
  flush_folder(folder_of(to));
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)),
      temporary_((folder_of(path_) / ("." + path_.filename().string() + ".XXXXXX.partial")).string()) {
  constexpr int suffix_length = sizeof(".partial") - 1;
  file_.reset(::mkostemps(temporary_.data(), suffix_length, O_CLOEXEC));
  if (!file_) throw SystemError("creating a file beside " + path_.string(), errno);
}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (!file_) throw InvalidArgument("writing " + path_.string() + ": it is committed already");
  while (!bytes.empty()) {
    ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("writing " + path_.string(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (!file_) throw InvalidArgument("writing " + path_.string() + ": it is committed already");
  if (::fchmod(file_.get(), usual_mode()) != 0) throw SystemError("setting the mode of " + path_.string(), errno);
  flush(file_.get(), path_.string());
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw SystemError("renaming to " + path_.string(), errno);
  file_.reset();
  flush_folder(folder_of(path_));
}

void AtomicFile::write(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace lockstep::sys
