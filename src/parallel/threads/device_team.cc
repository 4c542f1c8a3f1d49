#include "parallel/threads/device_team.h"

#include "base/check.h"
#include "base/scope_exit.h"
#include "sys/topology.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <latch>
#include <optional>
#include <utility>

namespace lockstep::threads {
namespace {

// Returns the current stream of `device` in the calling thread; std::nullopt on the CPU.
std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

DeviceTeam::DeviceTeam(std::vector<ComputeDevice> devices) : devices_(std::move(devices)) {
  check_devices(devices_);
  for (const ComputeDevice& device : devices_)
    check(device.device.is_cpu() || c10::impl::hasDeviceGuardImpl(device.device.type()),
          "DataParallel: this LibTorch has no {} devices",
          c10::DeviceTypeName(device.device.type()));
  // Threads inherit the number that was set last in any thread, so restore it.
  ScopeExit restore([before = at::get_num_threads()] { at::set_num_threads(before); });
  for (int i = 0; i < size(); ++i) start_thread(i);
}

void DeviceTeam::start_thread(int i) {
  const ComputeDevice& device = devices_[static_cast<std::size_t>(i)];
  auto& queue = *queues_.emplace_back(std::make_unique<sys::TaskQueue>());
  std::latch started(1);
  std::exception_ptr problem;
  queue.push([&] {
    try {
      if (!device.cores.empty()) sys::run_on_cores(device.cores);
      at::set_num_threads(device.threads);
    } catch (...) {
      problem = std::current_exception();
    }
    started.count_down();
  });
  started.wait();
  if (problem) std::rethrow_exception(problem);
}

std::vector<std::exception_ptr> DeviceTeam::run(const std::function<void(int)>& task) {
  check(!process_.is_copy_of_parent(),
        "DataParallel: made before fork(); its threads are not in the forked child");
  std::vector<std::exception_ptr> problems(devices_.size());
  at::ThreadLocalState state;
  std::latch done(size());
  for (int i = 0; i < size(); ++i) {
    auto& problem = problems[static_cast<std::size_t>(i)];
    auto stream = current_stream(devices_[static_cast<std::size_t>(i)].device);
    queues_[static_cast<std::size_t>(i)]->push([&, i, stream] {
      try {
        at::ThreadLocalStateGuard as_caller(state);
        c10::OptionalStreamGuard on_stream;
        if (stream) on_stream.reset_stream(*stream);
        task(i);
      } catch (...) {
        problem = std::current_exception();
      }
      done.count_down();
    });
  }
  done.wait();
  return problems;
}

}  // namespace lockstep::threads
