#include "sys/affinity.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include <sched.h>

namespace lockstep::sys {
namespace {

constexpr int most_cores = 1 << 20;
constexpr std::size_t word_bits = 8 * sizeof(unsigned long);

// A set of cores of any size.
class CoreMask {
 public:
  explicit CoreMask(int cores)
      : words_((static_cast<std::size_t>(cores) + word_bits - 1) / word_bits) {}
  [[nodiscard]] cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  [[nodiscard]] std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

}  // namespace

std::vector<int> allowed_cores() {
  // The kernel refuses a mask shorter than its own: grow until it fits.
  for (int cores = 1024; cores <= most_cores; cores *= 2) {
    CoreMask mask(cores);
    if (::sched_getaffinity(0, mask.bytes(), mask.set()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> allowed;
    for (int core = 0; core < cores; ++core)
      if (CPU_ISSET_S(static_cast<std::size_t>(core), mask.bytes(), mask.set()))
        allowed.push_back(core);
    return allowed;
  }
  throw SystemError("reading the cores that this thread may run on", errno);
}

void run_on_cores(std::span<const int> cores) {
  CoreMask mask(std::max(1024, cores.empty() ? 0 : *std::ranges::max_element(cores) + 1));
  for (int core : cores) CPU_SET_S(static_cast<std::size_t>(core), mask.bytes(), mask.set());
  if (::sched_setaffinity(0, mask.bytes(), mask.set()) != 0)
    throw SystemError(formatted("running a thread on cores {}", listed(cores, ", ")), errno);
}

}  // namespace lockstep::sys
