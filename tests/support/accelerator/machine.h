// A simulated accelerator made for finding faults of synchronisation: several devices in this
// process, whose memory hosts cannot touch, whose kernels run late and in any order that the
// streams allow, and whose launches are checked for happens-before. The machine knows nothing of
// LibTorch; device.h makes it a device of LibTorch's.
//
// A host is a rank: its clock is what its threads know to be finished, and every launch for one of
// its devices comes after that. Threads of one rank share a clock, so their order among themselves
// is not checked. All functions may be called by any thread.
#pragma once

#include "support/accelerator/blocks.h"
#include "support/accelerator/checker.h"
#include "support/accelerator/clock.h"
#include "support/accelerator/memory.h"
#include "support/accelerator/pinned.h"
#include "support/accelerator/reports.h"
#include "support/accelerator/scheduler.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

// How tasks run, until it is set again.
struct Schedule {
  std::uint64_t seed = 1;
  bool lazy = true;  // false: tasks run as soon as they can
  // Leaves out the n-th wait of a stream of this host for an event, from 1: what a forgotten event
  // does, without changing the code under test. 0: none.
  int drop_host = 0;
  int drop_wait = 0;
  // A host that waits this long while nothing runs or is launched is a stall.
  std::chrono::milliseconds longest_idle = std::chrono::seconds(15);
};

// The pinned buffer of an asynchronous copy.
struct PinnedUse {
  const void* address = nullptr;  // null: none
  bool writes = false;
};

struct Launch {
  Actor stream = 0;
  std::string name;
  std::vector<Access> accesses = {};
  std::function<void()> run = {};
  PinnedUse pinned = {};
  std::shared_ptr<Gate> gate = nullptr;
};

// Counts of a host since reset_counts().
struct Counts {
  int launches = 0;
  int waits = 0;  // of streams for events
  // The host's waits by cause, without those of the library's task queues, which delay no program.
  std::map<std::string, int> synchronizations{};
  [[nodiscard]] int all_synchronizations() const;
};

class Machine {
 public:
  // The one of this process; made by the first call.
  [[nodiscard]] static Machine& get();

  void set(const Schedule& schedule);
  [[nodiscard]] std::vector<Report> take_reports();
  [[nodiscard]] Counts counts(int host);
  void reset_counts();
  // Gives a device to a host, which then knows what the earlier one knew. At first all devices are
  // host 0's.
  void set_host(int device, int host);

  // Memory of a device, whose address no host may touch.
  [[nodiscard]] void* allocate(Actor stream, std::size_t bytes);
  void release(void* address);
  void record_stream(const void* address, Actor stream);
  [[nodiscard]] void* allocate_pinned(std::size_t bytes);
  void release_pinned(void* address);
  [[nodiscard]] const Memory& memory() const { return memory_; }

  void launch(Launch launch);
  [[nodiscard]] Event record(Actor stream);
  void wait(const Event& event, Actor stream);
  [[nodiscard]] bool query(const Event& event);
  // Blocks the calling thread and counts that.
  void synchronize(const Event& event, const std::string& cause);
  void synchronize_device(int device, const std::string& cause);

  // For collectives, with the mutex held.
  [[nodiscard]] Lock lock() { return Lock(mutex_); }
  void launch(const Lock& lock, Launch launch);
  // Lets hosts that wait look again.
  void wake(const Lock&) { scheduler_.wake(); }
  [[nodiscard]] Clock& clock_of(const Lock&, Actor stream) { return clocks_.at(stream); }
  [[nodiscard]] Reports& reports(const Lock&) { return reports_; }

 private:
  Machine();
  void on_touch(const void* address);
  void count_synchronization(int host, const std::string& cause);
  [[nodiscard]] int host_of(Actor stream) const { return hosts_.at(device_of(stream)); }
  [[nodiscard]] Event end_of(Actor stream) const;
  // The host knows that everything in the clock is finished.
  void learn(int host, const Clock& clock);

  std::mutex mutex_;
  Memory memory_;
  Reports reports_;
  Blocks blocks_;
  PinnedMemory pinned_{memory_};
  Checker checker_{blocks_, reports_};
  Scheduler scheduler_{reports_};
  std::array<Clock, stream_count> clocks_{};  // of the streams' ends
  std::array<Clock, host_count> host_clocks_{};
  std::array<int, device_count> hosts_{};
  std::array<Counts, host_count> counts_{};
  Schedule schedule_;
};

}  // namespace lockstep::test::accelerator
