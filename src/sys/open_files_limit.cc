#include "sys/open_files_limit.h"

#include <lockstep/base/error.h>

#include <cerrno>

namespace lockstep::sys {

RaisedOpenFilesLimit::RaisedOpenFilesLimit() {
  if (::getrlimit(RLIMIT_NOFILE, &before_) != 0)
    throw SystemError("asking how many files may be open", errno);
  const rlimit raised{before_.rlim_max, before_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

RaisedOpenFilesLimit::~RaisedOpenFilesLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace lockstep::sys
