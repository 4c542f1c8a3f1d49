#include "support/quiet.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

namespace {

// Globals, because signal handlers and operator new can only access globals.
thread_local bool counting = false;
thread_local int until_refused = -1;
std::atomic<int> system_calls{0};
std::atomic<int> first_call{-1};
std::atomic<int> allocations{0};

void on_trapped_call(int, siginfo_t* info, void* context) {
  int none = -1;
  first_call.compare_exchange_strong(none, info->si_syscall);
  ++system_calls;
  auto* registers = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
  registers->uc_mcontext.gregs[REG_RAX] = -ENOSYS;
#elif defined(__aarch64__)
  registers->uc_mcontext.regs[0] = static_cast<unsigned long long>(-ENOSYS);
#endif
}

void trap_system_calls() {
  struct sigaction action {};
  action.sa_sigaction = on_trapped_call;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSYS, &action, nullptr);
  auto allowed = [](unsigned int number) {
    return std::array<sock_filter, 2>{sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                                      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  };
  auto end = allowed(SYS_exit_group);
  auto back = allowed(SYS_rt_sigreturn);
  std::array<sock_filter, 6> filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      end[0],
      end[1],
      back[0],
      back[1],
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)};
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::perror("asked_by: the system refuses a seccomp filter");
    std::abort();  // without the filter, no call would be counted, and every test would pass
  }
}

[[maybe_unused]] void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  if (until_refused >= 0 && until_refused-- == 0) throw std::bad_alloc();
  void* block = alignment > alignof(std::max_align_t)
                    ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                    : std::malloc(bytes > 0 ? bytes : 1);
  if (!block) throw std::bad_alloc();
  return block;
}

}  // namespace

#if defined(__has_feature)
#define LOCKSTEP_HAS_FEATURE(name) __has_feature(name)
#else
#define LOCKSTEP_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    LOCKSTEP_HAS_FEATURE(address_sanitizer) || LOCKSTEP_HAS_FEATURE(thread_sanitizer)
static constexpr bool sanitized = true;
#else
static constexpr bool sanitized = false;
void* operator new(std::size_t bytes) { return counted(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
#endif

namespace lockstep::test {

bool can_count_calls() { return !sanitized; }

Asked asked_by(const std::function<void()>& body) {
  trap_system_calls();
  counting = true;
  body();
  counting = false;
  return {system_calls, first_call, allocations};
}

void refuse_allocation(int number) { until_refused = number; }

}  // namespace lockstep::test
