#include "apps/bench/collectives/core_to_core.h"

#include "apps/bench/spread.h"

#include <lockstep/base/deadline.h>

#include "sys/topology.h"

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

namespace lockstep::apps {
namespace {

constexpr int batches = 15, exchanges = 4000;

// Pins this thread to the number-th core that this process may use, so that the benchmark does not
// measure the scheduler.
void stay_on_core(int number) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || number-- > 0) continue;
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

// Each thread waits for the other thread's number and replies with its own.
struct Exchange {
  alignas(128) std::atomic<int> request{0};
  alignas(128) std::atomic<int> reply{0};
};

void answer(Exchange& exchange, int last) {
  stay_on_core(1);
  for (int number = 1; number <= last; ++number) {
    while (exchange.request.load(std::memory_order_acquire) < number) {
    }
    exchange.reply.store(number, std::memory_order_release);
  }
}

double seconds_of_batch(Exchange& exchange, int first) {
  auto start = Clock::now();
  for (int number = first; number < first + exchanges; ++number) {
    exchange.request.store(number, std::memory_order_release);
    while (exchange.reply.load(std::memory_order_acquire) < number) {
    }
  }
  return std::chrono::duration<double>(Clock::now() - start).count() / (2 * exchanges);
}

}  // namespace

double core_to_core_seconds() {
  if (sys::usable_cores() < 2) return 0;
  Exchange exchange;
  std::vector<double> seconds;
  std::thread other(answer, std::ref(exchange), batches * exchanges);
  std::thread self([&] {
    stay_on_core(0);
    for (int batch = 0; batch < batches; ++batch)
      seconds.push_back(seconds_of_batch(exchange, 1 + batch * exchanges));
  });
  self.join();
  other.join();
  return spread_of(seconds).p50;
}

}  // namespace lockstep::apps
