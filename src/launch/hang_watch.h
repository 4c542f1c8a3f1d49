// Which workers give no sign of life, though their processes are there.
#pragma once

#include "base/mutex.h"
#include "launch/heartbeat_monitor.h"
#include "sys/file_descriptor.h"
#include "sys/thread.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace lockstep::launch {

// From a thread of its own, which looks five times in `hung_after`: at the worker's beats in the
// store (beat.h), or, until there are any, at whether the kernel says that the process is stopped.
class HangWatch {
 public:
  // `open` is called from that thread; without a store only the kernel is asked. The destructor
  // waits for `open`, but not for a store that does not answer.
  HangWatch(Duration hung_after, std::function<std::shared_ptr<Store>()> open);
  ~HangWatch();
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

  // The workers that are to be watched from now on, by name.
  void watch(std::map<std::string, pid_t> workers);
  // For poll(): readable when take_hung() has some.
  [[nodiscard]] int descriptor() const { return changed_.get(); }
  // Those that have given no sign for hung_after, each once.
  [[nodiscard]] std::set<std::string> take_hung();

 private:
  struct Watched {
    pid_t pid;
    HeartbeatMonitor monitor;
    std::int64_t looks = 0;
  };
  void run();
  [[nodiscard]] std::shared_ptr<Store> opened();
  void look(Store* store, std::map<std::string, Watched>& watched);
  [[nodiscard]] static std::string sign_of(Store* store, const std::string& name, Watched& watched);

  Duration hung_after_;
  std::function<std::shared_ptr<Store>()> open_;
  sys::FileDescriptor changed_;
  Mutex mutex_;
  std::condition_variable changed_here_;
  bool closing_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Store> store_ LOCKSTEP_GUARDED_BY(mutex_);  // null: to be opened
  std::map<std::string, pid_t> wanted_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<std::string> hung_ LOCKSTEP_GUARDED_BY(mutex_);
  sys::Thread thread_;
};

}  // namespace lockstep::launch
