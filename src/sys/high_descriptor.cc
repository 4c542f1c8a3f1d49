#include "sys/high_descriptor.h"

#include <lockstep/base/error.h>

#include <fcntl.h>

#include <cerrno>

namespace lockstep::sys {

FileDescriptor with_high_number(const FileDescriptor& descriptor) {
  for (int least : {100, 20, 3}) {
    FileDescriptor copy(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, least));
    if (copy) return copy;
  }
  throw SystemError("copying a descriptor for a rank", errno);
}

}  // namespace lockstep::sys
