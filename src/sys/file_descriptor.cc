#include "sys/file_descriptor.h"

#include <lockstep/base/error.h>

#include <cerrno>

#include <fcntl.h>

namespace lockstep::sys {

FileDescriptor with_high_number(const FileDescriptor& descriptor) {
  for (int least : {100, 20, 3}) {
    FileDescriptor copy(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, least));
    if (copy) return copy;
  }
  throw SystemError("copying a descriptor for a rank", errno);
}

RaisedOpenFilesLimit::RaisedOpenFilesLimit() {
  if (::getrlimit(RLIMIT_NOFILE, &before_) != 0)
    throw SystemError("reading the limit of open files", errno);
  const rlimit raised{before_.rlim_max, before_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

RaisedOpenFilesLimit::~RaisedOpenFilesLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace lockstep::sys
