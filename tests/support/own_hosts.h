// A hosts file that only this process sees, for names that become known later. For use in a forked
// process.
#pragma once

#include "support/temporary_folder.h"

#include <fstream>
#include <string>

#include <sched.h>
#include <sys/mount.h>

namespace lockstep::test {

class OwnHosts {
 public:
  // Returns false if the system does not allow it. Call it before the process has other threads.
  [[nodiscard]] bool begin() {
    write("");
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    return ::mount(file_.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) == 0;
  }
  // Replaces all lines, such as "127.0.0.7 name\n".
  void write(const std::string& lines) { std::ofstream(file_, std::ios::trunc) << lines; }

 private:
  TemporaryFolder folder_;
  std::string file_ = (folder_ / "hosts").string();
};

}  // namespace lockstep::test
