// An object that several processes share, either in memory that forked ranks inherit or in a file
// that programs map by its path. T must not hold pointers, and needs atomics for concurrent access.
#pragma once

#include <lockstep/base/error.h>
#include "sys/file_descriptor.h"

#include <cerrno>
#include <filesystem>
#include <new>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::test {

template <class T>
class SharedObject {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  SharedObject() : SharedObject(-1, MAP_SHARED | MAP_ANONYMOUS) { new (object_) T; }
  // Creates the file and the object in it.
  [[nodiscard]] static SharedObject make(const std::filesystem::path& path) {
    SharedObject made = open(path, O_RDWR | O_CREAT | O_EXCL);
    new (made.object_) T;
    return made;
  }
  // Maps the file that another process created.
  [[nodiscard]] static SharedObject open(const std::filesystem::path& path) {
    return open(path, O_RDWR);
  }
  SharedObject(SharedObject&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  SharedObject& operator=(SharedObject&&) = delete;
  ~SharedObject() {
    if (object_ != nullptr) ::munmap(object_, sizeof(T));
  }

  [[nodiscard]] T& operator*() const { return *object_; }
  [[nodiscard]] T* operator->() const { return object_; }

 private:
  SharedObject(int file, int flags) {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, flags, file, 0);
    if (memory == MAP_FAILED) throw SystemError("mmap of an object that processes share", errno);
    object_ = static_cast<T*>(memory);
  }
  static SharedObject open(const std::filesystem::path& path, int flags) {
    sys::FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0600));
    if (!file || ::ftruncate(file.get(), sizeof(T)) != 0) throw SystemError(path.string(), errno);
    return SharedObject(file.get(), MAP_SHARED);
  }

  T* object_;
};

}  // namespace lockstep::test
