#include "sys/mapped_file.h"

#include "sys/plain_file.h"
#include "sys/signals.h"
#include "sys/whole_call.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {

MappedFile::MappedFile(const std::filesystem::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw SystemError("opening " + path.string(), errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw SystemError("reading the size of " + path.string(), errno);
  if (!S_ISREG(status.st_mode))
    throw BadInput("mapping " + path.string() + ": expected a regular file");
  if (status.st_size == 0) return;
  auto size = static_cast<std::size_t>(status.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) throw SystemError("mapping " + path.string(), errno);
  memory_ = MappedMemory(static_cast<std::byte*>(memory), {size});
}

MappedFile MappedFile::private_copy(const PlainFile& file) {
  MappedFile mapped;
  const auto size = static_cast<std::size_t>(file.size());
  if (size == 0) return mapped;
  // Without a swap reservation: only written pages take memory.
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                        file.descriptor(), 0);
  if (memory == MAP_FAILED) throw SystemError("mapping " + file.path().string(), errno);
  mapped.memory_ = MappedMemory(static_cast<std::byte*>(memory), {size});
  return mapped;
}

namespace {

// Creates a file without a name. Not every filesystem supports O_TMPFILE.
FileDescriptor nameless_file(const std::filesystem::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file) return file;
  if (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL) {
    std::string name = (folder / ".lockstep-XXXXXX").string();
    file = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
    if (file) {
      ::unlink(name.c_str());
      return file;
    }
  }
  throw SystemError("making a file in " + folder.string(), errno);
}

// Used if the system cannot reserve space. Returns 0 or an error number.
int fill_with_zeros(int file, std::size_t bytes) {
  const std::vector<std::byte> zeros(std::min<std::size_t>(bytes, 1 << 20));
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t wanted = std::min(zeros.size(), bytes - done);
    const ssize_t count = ::pwrite(file, zeros.data(), wanted, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    done += static_cast<std::size_t>(count);
  }
  return 0;
}

struct Pages {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
};

std::uintptr_t page_size() { return static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)); }

// Returns the pages that lie completely inside the range.
Pages pages_inside(const void* begin, std::size_t bytes) {
  std::uintptr_t page = page_size(), first = reinterpret_cast<std::uintptr_t>(begin);
  std::uintptr_t end = (first + bytes) / page * page;
  first = (first + page - 1) / page * page;
  return first < end ? Pages{first, end - first} : Pages{};
}

Pages pages_around(const void* begin, std::size_t bytes) {
  std::uintptr_t page = page_size(), first = reinterpret_cast<std::uintptr_t>(begin);
  std::uintptr_t end = (first + bytes + page - 1) / page * page;
  first = first / page * page;
  return {first, end - first};
}

}  // namespace

int take_space(int file, std::size_t bytes) {
  const ScopedSignalBlock quiet(SIGXFSZ);
  const int error =
      whole_call([&] { return ::posix_fallocate(file, 0, static_cast<off_t>(bytes)); });
  const bool is_refused = error == ENOSYS || error == EPERM || error == EACCES || error == EINVAL ||
                          error == EOPNOTSUPP;
  return is_refused ? fill_with_zeros(file, bytes) : error;
}

ReservedFile::ReservedFile(const std::filesystem::path& folder, std::size_t bytes) {
  FileDescriptor file = nameless_file(folder);
  if (bytes == 0) return;
  if (const int error = take_space(file.get(), bytes); error != 0)
    throw SystemError("reserving " + std::to_string(bytes) + " bytes in " + folder.string(), error);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw SystemError("mapping a file in " + folder.string(), errno);
  memory_ = MappedMemory(static_cast<std::byte*>(memory), {bytes});
}

void fetch_ahead(const void* begin, std::size_t bytes) noexcept {
  Pages pages = pages_around(begin, bytes);
  if (bytes > 0) (void)::madvise(reinterpret_cast<void*>(pages.begin), pages.bytes, MADV_WILLNEED);
}

// MADV_DONTNEED only unmaps the pages of a shared mapping: they stay in the page cache, from which
// they are written to the file.
void let_go(const void* begin, std::size_t bytes) noexcept {
  Pages pages = pages_inside(begin, bytes);
  if (pages.bytes == 0) return;
  (void)::madvise(reinterpret_cast<void*>(pages.begin), pages.bytes, MADV_DONTNEED);
}

}  // namespace lockstep::sys
