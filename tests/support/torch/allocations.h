// Counts the bytes that this thread allocates from LibTorch's allocators and frees.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace lockstep::test {

class Allocations {
 public:
  Allocations()
      : counter_(std::make_shared<Counter>()), on_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

  // Counted since this object was created.
  [[nodiscard]] std::int64_t held() const { return counter_->held; }
  [[nodiscard]] std::int64_t peak() const { return counter_->peak; }
  void reset_peak() { counter_->peak = counter_->held; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                           c10::Device) override {
      held += bytes;
      peak = std::max(peak, held);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    std::int64_t held = 0;
    std::int64_t peak = 0;
  };

  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard on_;
};

}  // namespace lockstep::test
