#include "support/denied_calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace lockstep::test {

std::string DeniedCall::text() const { return std::string(name) + ": " + ::strerrorname_np(error); }

bool deny(const DeniedCall& call) {
  const auto number = static_cast<unsigned>(call.number);
  const auto error = static_cast<unsigned>(call.error) & SECCOMP_RET_DATA;
  sock_filter lines[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = sizeof(lines) / sizeof(lines[0]), .filter = lines};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool can_deny_calls() {
  static const bool can = [] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const bool is_denied =
          deny({"getppid", SYS_getppid, ENOSYS}) && ::syscall(SYS_getppid) < 0 && errno == ENOSYS;
      ::_exit(is_denied ? 0 : 1);
    }
    int status = -1;
    return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
  }();
  return can;
}

std::vector<DeniedCall> denied_calls(const std::vector<DeniedCall>& calls,
                                     const std::vector<int>& errors) {
  std::vector<DeniedCall> all;
  for (auto call : calls) {
    for (const int error : errors) {
      call.error = error;
      all.push_back(call);
    }
  }
  return all;
}

}  // namespace lockstep::test
