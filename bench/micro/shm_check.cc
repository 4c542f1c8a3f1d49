// Measures the cost of the always-on check per call: computing this rank's fingerprint, and
// comparing it with the peer's fingerprint, which is in a cache line that the hand-off reads
// anyway.
//
//   build/release/bench/shm_check
#include "comm/backends/shm/ring.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

namespace lockstep::shm {
namespace {

Fingerprint fingerprint_of_call(std::int64_t count, std::string_view tag) {
  const CallInfo call{.collective = Collective::all_reduce, .dtype = DType::float32, .tag = tag};
  return Fingerprint::of(call, count);
}

void make_fingerprint(benchmark::State& state) {
  std::string tag(static_cast<std::size_t>(state.range(0)), 'b');
  for (auto _ : state) {
    benchmark::DoNotOptimize(tag.data());
    benchmark::DoNotOptimize(fingerprint_of_call(256, tag));
  }
}
BENCHMARK(make_fingerprint)->Arg(0)->Arg(8);

void compare_fingerprint(benchmark::State& state) {
  Slot slot;
  const char* file = nullptr;
  auto print = fingerprint_of_call(256, "bucket 3");
  write(slot, 1, {print, {}, {}}, {.collective = Collective::all_reduce, .tag = "bucket 3"}, file);
  for (auto _ : state) {
    Descriptor descriptor;
    benchmark::DoNotOptimize(&slot);
    bool posted = read(slot, 1, descriptor) == Posted::yes;
    benchmark::DoNotOptimize(posted && descriptor.print == print);
  }
}
BENCHMARK(compare_fingerprint);

// Both parts, as in a call between two ranks.
void check_of_a_call(benchmark::State& state) {
  Slot slot;
  const char* file = nullptr;
  write(slot, 1, {fingerprint_of_call(256, ""), {}, {}}, {.collective = Collective::all_reduce},
        file);
  std::string_view tag;
  for (auto _ : state) {
    Descriptor descriptor;
    benchmark::DoNotOptimize(tag);
    benchmark::DoNotOptimize(&slot);
    bool posted = read(slot, 1, descriptor) == Posted::yes;
    benchmark::DoNotOptimize(posted && descriptor.print == fingerprint_of_call(256, tag));
  }
}
BENCHMARK(check_of_a_call);

}  // namespace
}  // namespace lockstep::shm

BENCHMARK_MAIN();
