// The kernels are compiled once per instruction set (Highway's foreach_target); the set is chosen
// at run time.
#include "apps/bench/collectives/host_bounds.h"

#include "apps/bench/spread.h"
#include "sys/topology.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "apps/bench/collectives/host_bounds.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::apps::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <bool streams, typename Vector, typename Tag>
HWY_INLINE void store(Vector values, Tag tag, float* a, float* b) {
  if constexpr (streams) {
    hn::Stream(values, tag, a);
    hn::Stream(values, tag, b);
  } else {
    hn::Store(values, tag, a);
    hn::Store(values, tag, b);
  }
}

template <bool streams, bool prefetches>
void average_into_both(float* a, float* b, std::int64_t count) {
  const hn::ScalableTag<float> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto half = hn::Set(tag, 0.5F);
  constexpr std::int64_t ahead = 2048 / sizeof(float);
  for (std::int64_t i = 0; i + 2 * lanes <= count; i += 2 * lanes) {
    if (prefetches && i + ahead < count) {
      hwy::Prefetch(a + i + ahead);
      hwy::Prefetch(b + i + ahead);
    }
    const auto first = hn::Add(hn::Load(tag, a + i), hn::Load(tag, b + i));
    const auto second = hn::Add(hn::Load(tag, a + i + lanes), hn::Load(tag, b + i + lanes));
    store<streams>(hn::Mul(first, half), tag, a + i, b + i);
    store<streams>(hn::Mul(second, half), tag, a + i + lanes, b + i + lanes);
  }
  if constexpr (streams) hwy::FlushStream();
}

void AverageIntoBoth(float* a, float* b, std::int64_t count, PassKind kind) {
  if (kind.streams)
    kind.prefetches ? average_into_both<true, true>(a, b, count)
                    : average_into_both<true, false>(a, b, count);
  else
    kind.prefetches ? average_into_both<false, true>(a, b, count)
                    : average_into_both<false, false>(a, b, count);
}

}  // namespace
}  // namespace lockstep::apps::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::apps {
namespace {

HWY_EXPORT(AverageIntoBoth);

constexpr std::array<PassKind, 4> kinds{
    {{false, false}, {false, true}, {true, false}, {true, true}}};

// Gap between the two halves in elements. If both had the same page offset, a load would seem to
// depend on the store before it (4K aliasing).
constexpr std::int64_t apart = (64 * 33) / sizeof(float);
constexpr std::int64_t line = 64 / sizeof(float);

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

// The measuring thread stores a number in `request` and waits until the other thread has stored it
// in `reply`.
struct PingPong {
  alignas(128) std::atomic<int> request{0};
  alignas(128) std::atomic<int> reply{0};
};

void answer(PingPong& exchange, int last) {
  stay_on_core(1);
  for (int number = 1; number <= last; ++number) {
    while (exchange.request.load(std::memory_order_acquire) < number) {
    }
    exchange.reply.store(number, std::memory_order_release);
  }
}

double seconds_of_batch(PingPong& exchange, int first) {
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
  PingPong exchange;
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

std::span<const PassKind> pass_kinds() { return kinds; }

MemoryBound::MemoryBound(std::int64_t bytes)
    : count_(std::max<std::int64_t>(bytes / 2 / static_cast<std::int64_t>(sizeof(float)), 1)),
      other_((count_ + line - 1) / line * line + apart),
      mapped_((other_ + count_) * static_cast<std::int64_t>(sizeof(float))) {
  void* memory =
      ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError("cannot map memory to measure it", errno);
  ::madvise(memory, mapped_, MADV_HUGEPAGE);
  memory_ = static_cast<float*>(memory);
  std::fill_n(memory_, other_ + count_, 1.0F);
}

MemoryBound::~MemoryBound() { ::munmap(memory_, mapped_); }

void MemoryBound::pass(PassKind kind) {
  HWY_DYNAMIC_DISPATCH(AverageIntoBoth)(memory_, memory_ + other_, count_, kind);
}

}  // namespace lockstep::apps
#endif
