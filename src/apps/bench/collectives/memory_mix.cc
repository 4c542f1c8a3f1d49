// The kernels are compiled once for each instruction set (Highway's foreach_target) and chosen at
// run time.
#include "apps/bench/collectives/memory_mix.h"

#include "apps/bench/spread.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include "sys/topology.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "apps/bench/collectives/memory_mix.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::apps::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <bool stream>
void add_into_both(float* a, float* b, std::int64_t begin, std::int64_t end) {
  const hn::ScalableTag<float> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  for (std::int64_t i = begin; i + lanes <= end; i += lanes) {
    auto sum = hn::Add(hn::Load(tag, a + i), hn::Load(tag, b + i));
    if constexpr (stream) {
      hn::Stream(sum, tag, a + i);
      hn::Stream(sum, tag, b + i);
    } else {
      hn::Store(sum, tag, a + i);
      hn::Store(sum, tag, b + i);
    }
  }
  if constexpr (stream) hwy::FlushStream();
}

void AddIntoBoth(float* a, float* b, std::int64_t begin, std::int64_t end, bool stream) {
  stream ? add_into_both<true>(a, b, begin, end) : add_into_both<false>(a, b, begin, end);
}

}  // namespace
}  // namespace lockstep::apps::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::apps {
HWY_EXPORT(AddIntoBoth);
namespace {

constexpr int runs_to_choose = 3;
constexpr std::int64_t block = 4096 / sizeof(float);  // threads begin at pages

// The number-th core that this process may use; a thread elsewhere would measure the scheduler.
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

float* map_buffer(std::int64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError("cannot map memory to measure it", errno);
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  auto* values = static_cast<float*>(memory);
  std::fill_n(values, bytes / sizeof(float), 1.0F);
  return values;
}

// Threads that begin each round together. Spins: they are as many as there are cores.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}
  void wait() {
    int round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
    }
    while (round_.load(std::memory_order_acquire) == round) hwy::Pause();
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Each waits for the other's number and answers with its own.
struct Court {
  alignas(128) std::atomic<int> there{0};
  alignas(128) std::atomic<int> back{0};
};

void return_balls(Court& court, int last) {
  stay_on_core(1);
  for (int ball = 1; ball <= last; ++ball) {
    while (court.there.load(std::memory_order_acquire) < ball) {
    }
    court.back.store(ball, std::memory_order_release);
  }
}

double serve_balls(Court& court, int first, int count) {
  auto start = Clock::now();
  for (int ball = first; ball < first + count; ++ball) {
    court.there.store(ball, std::memory_order_release);
    while (court.back.load(std::memory_order_acquire) < ball) {
    }
  }
  return since(start) / (2 * count);
}

}  // namespace

MemoryMix::MemoryMix(std::int64_t bytes)
    : bytes_(std::max<std::int64_t>(bytes, 1 << 16)), threads_(std::min(2, sys::usable_cores())) {
  for (float*& buffer : buffers_) buffer = map_buffer(bytes_);
  double stored = spread_of(run(runs_to_choose, false)).p50;
  double streamed = spread_of(run(runs_to_choose, true)).p50;
  stream_ = streamed < stored;
}

MemoryMix::~MemoryMix() {
  for (float* buffer : buffers_) ::munmap(buffer, bytes_);
}

std::vector<double> MemoryMix::run(int times) { return run(times, stream_); }

std::vector<double> MemoryMix::run(int times, bool stream) {
  std::vector<double> seconds(times);
  SpinBarrier barrier(threads_);
  std::int64_t count = bytes_ / static_cast<std::int64_t>(sizeof(float));
  auto work = [&](int number) {
    stay_on_core(number);
    std::int64_t begin = count * number / threads_ / block * block;
    std::int64_t end =
        number + 1 == threads_ ? count : count * (number + 1) / threads_ / block * block;
    for (double& time : seconds) {
      barrier.wait();
      auto start = Clock::now();
      HWY_DYNAMIC_DISPATCH(AddIntoBoth)(buffers_[0], buffers_[1], begin, end, stream);
      barrier.wait();
      if (number == 0) time = since(start);
    }
  };
  std::vector<std::thread> threads;
  for (int number = 0; number < threads_; ++number) threads.emplace_back(work, number);
  for (std::thread& thread : threads) thread.join();
  return seconds;
}

double core_to_core_seconds() {
  constexpr int batches = 15, balls = 4000;
  if (sys::usable_cores() < 2) return 0;
  Court court;
  std::vector<double> seconds;
  std::thread other(return_balls, std::ref(court), batches * balls);
  std::thread self([&] {
    stay_on_core(0);
    for (int batch = 0; batch < batches; ++batch)
      seconds.push_back(serve_balls(court, 1 + batch * balls, balls));
  });
  self.join();
  other.join();
  return spread_of(seconds).p50;
}

}  // namespace lockstep::apps
#endif
