// A simulated accelerator that finds synchronisation faults. It has several devices in this
// process. Hosts cannot access device memory, kernels run late and in any order that the streams
// allow, and every launch is checked for happens-before. The machine does not depend on LibTorch;
// device.h makes it a device of LibTorch.
//
// A host is a rank. Its clock holds the work that its threads have waited for; every launch on one
// of its devices is ordered after that work. Threads of one rank share a clock, so the order
// between them is not checked. All functions are thread-safe.
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

// The order in which tasks run, until the next set().
struct Schedule {
  std::uint64_t seed = 1;
  bool lazy = true;  // false: tasks run as soon as they can
  // Leaves out wait number `drop_wait` (from 1) of this host's streams for an event, as if the code
  // under test had forgotten it. 0: none.
  int drop_host = 0;
  int drop_wait = 0;
  // If a host waits this long while nothing runs or is launched, a stall is reported.
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
  // The host's waits by cause, except waits in the library's task queues, which do not delay the
  // program.
  std::map<std::string, int> synchronizations{};
  [[nodiscard]] int all_synchronizations() const;
};

class Machine {
 public:
  // Returns the machine of this process, which the first call creates.
  [[nodiscard]] static Machine& get();

  void set(const Schedule& schedule);
  [[nodiscard]] std::vector<Report> take_reports();
  [[nodiscard]] Counts counts(int host);
  void reset_counts();
  // Moves a device to a host, whose clock then includes the clock of the device's previous host.
  // Initially all devices belong to host 0.
  void set_host(int device, int host);

  // Allocates device memory, which hosts must not access.
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
  // Blocks the calling thread, and counts the wait under `cause`.
  void synchronize(const Event& event, const std::string& cause);
  void synchronize_device(int device, const std::string& cause);

  // For collectives, with the mutex held.
  [[nodiscard]] MachineLock lock() { return MachineLock(mutex_); }
  void launch(const MachineLock& lock, Launch launch);
  // Wakes waiting hosts to check their conditions.
  void wake(const MachineLock&) { scheduler_.wake(); }
  [[nodiscard]] Clock& clock_of(const MachineLock&, Actor stream) { return clocks_.at(stream); }
  [[nodiscard]] Reports& reports(const MachineLock&) { return reports_; }

 private:
  Machine();
  void on_touch(const void* address);
  void count_synchronization(int host, const std::string& cause);
  [[nodiscard]] int host_of(Actor stream) const { return hosts_.at(device_of(stream)); }
  [[nodiscard]] Event end_of(Actor stream) const;
  void note_reusable(const Block& block);
  // Fills unwritten bytes with NaN before the stream's next task: the zeros of new pages would hide
  // that a value is missing.
  void poison(Actor stream, const Checker::Findings& found);
  // Records that the host has waited for everything in the clock.
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
