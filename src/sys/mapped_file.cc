#include "sys/mapped_file.h"

#include "sys/file_descriptor.h"
#include "sys/plain_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

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
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile MappedFile::private_copy(const PlainFile& file) {
  MappedFile mapped;
  const auto size = static_cast<std::size_t>(file.size());
  if (size == 0) return mapped;
  // Without a swap reservation: only written pages take memory.
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                        file.descriptor(), 0);
  if (memory == MAP_FAILED) throw SystemError("mapping " + file.path().string(), errno);
  mapped.bytes_ = {static_cast<const std::byte*>(memory), size};
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace lockstep::sys
