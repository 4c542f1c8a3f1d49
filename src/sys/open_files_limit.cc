#include "sys/open_files_limit.h"

namespace lockstep::sys {

RaisedOpenFilesLimit::RaisedOpenFilesLimit() {
  ::getrlimit(RLIMIT_NOFILE, &before_);
  const rlimit raised{before_.rlim_max, before_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

RaisedOpenFilesLimit::~RaisedOpenFilesLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace lockstep::sys
