// DeviceTeam: one thread per device of a DataParallel, on its cores and with its share of
// LibTorch's threads.
//
// Used by one thread at a time.
#pragma once

#include "sys/own_process.h"
#include "sys/thread.h"

#include <lockstep/parallel/threads/devices.h>

#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace lockstep::threads {

class DeviceTeam {
 public:
  // Throws SystemError if a core is not available.
  explicit DeviceTeam(std::vector<ComputeDevice> devices);

  [[nodiscard]] const std::vector<ComputeDevice>& devices() const { return devices_; }
  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }

  // Runs task(i) in the thread of device i, on all devices concurrently, each with the caller's
  // thread-local state (grad mode, autocast, current streams). Blocks until all have ended, and
  // returns their exceptions. Throws InvalidArgument in a forked child, which does not have these
  // threads.
  [[nodiscard]] std::vector<std::exception_ptr> run(const std::function<void(int)>& task);

 private:
  void start_thread(int i);

  std::vector<ComputeDevice> devices_;
  sys::OwnProcess process_;
  std::vector<std::unique_ptr<sys::TaskQueue>> queues_;
};

}  // namespace lockstep::threads
