#include "support/accelerator/machine.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include <pthread.h>

namespace lockstep::test::accelerator {

int Counts::all_synchronizations() const {
  int sum = 0;
  for (const auto& [cause, times] : synchronizations) sum += times;
  return sum;
}

Machine& Machine::get() {
  // Never destroyed: the worker, and tensors in static objects, use it until the process ends.
  static Machine& machine = *std::unique_ptr<Machine>(new Machine).release();
  return machine;
}

Machine::Machine() : memory_([this](const void* address) { on_touch(address); }) {
  scheduler_.choose_by(schedule_.seed, schedule_.lazy, schedule_.longest_idle);
  std::thread([this] {
    MachineLock lock(mutex_);
    scheduler_.work(lock);
  }).detach();
}

void Machine::set(const Schedule& schedule) {
  MachineLock lock(mutex_);
  schedule_ = schedule;
  counts_ = {};
  scheduler_.choose_by(schedule.seed, schedule.lazy, schedule.longest_idle);
}

std::vector<Report> Machine::take_reports() {
  MachineLock lock(mutex_);
  return reports_.take();
}

Counts Machine::counts(int host) {
  MachineLock lock(mutex_);
  return counts_.at(host);
}

void Machine::reset_counts() {
  MachineLock lock(mutex_);
  counts_ = {};
}

void Machine::set_host(int device, int host) {
  MachineLock lock(mutex_);
  join(host_clocks_.at(host), host_clocks_[hosts_.at(device)]);
  hosts_[device] = host;
}

void* Machine::allocate(Actor stream, std::size_t bytes) {
  MachineLock lock(mutex_);
  blocks_.collect([&](const Event& event) { return scheduler_.is_done(event); },
                  [&](const Block& block, const Clock& clock) { checker_.forget(block, clock); });
  return memory_.device_address(blocks_.allocate(stream, bytes));
}

void Machine::release(void* address) {
  MachineLock lock(mutex_);
  blocks_.release(memory_.offset_of(address), [&](Actor stream) { return end_of(stream); });
}

void Machine::record_stream(const void* address, Actor stream) {
  MachineLock lock(mutex_);
  if (address != nullptr && memory_.is_device(address))
    blocks_.record(memory_.offset_of(address), stream);
}

void* Machine::allocate_pinned(std::size_t bytes) {
  MachineLock lock(mutex_);
  return pinned_.allocate(bytes);
}

void Machine::release_pinned(void* address) {
  MachineLock lock(mutex_);
  pinned_.release(address);
}

void Machine::launch(Launch launch) {
  MachineLock lock(mutex_);
  this->launch(lock, std::move(launch));
}

void Machine::launch(const MachineLock&, Launch launch) {
  memory_.close_touched();
  const Actor stream = launch.stream;
  Clock& clock = clocks_.at(stream);
  join(clock, host_clocks_[host_of(stream)]);
  const auto operation =
      std::make_shared<const Operation>(Operation{.name = launch.name,
                                                  .stream = stream,
                                                  .time = ++clock[stream],
                                                  .sequence = scheduler_.given(stream) + 1});
  std::vector<Event> unordered;
  for (const Access& access : launch.accesses) {
    const auto found = checker_.check(access, operation, clock);
    unordered.insert(unordered.end(), found.begin(), found.end());
  }
  if (launch.pinned.address != nullptr)
    pinned_.begin_copy(launch.pinned.address, launch.pinned.writes, launch.name, stream,
                       operation->time);
  ++counts_[host_of(stream)].launches;
  scheduler_.push(stream, {.name = std::move(launch.name),
                           .run = std::move(launch.run),
                           .after = std::move(unordered),
                           .gate = launch.gate});
}

Event Machine::end_of(Actor stream) const {
  return {stream, scheduler_.given(stream), clocks_.at(stream)};
}

Event Machine::record(Actor stream) {
  MachineLock lock(mutex_);
  join(clocks_.at(stream), host_clocks_[host_of(stream)]);
  return end_of(stream);
}

void Machine::wait(const Event& event, Actor stream) {
  if (event.stream < 0 || event.stream == stream) return;
  MachineLock lock(mutex_);
  const int host = host_of(stream);
  if (++counts_[host].waits == schedule_.drop_wait && host == schedule_.drop_host) return;
  join(clocks_.at(stream), event.clock);
  scheduler_.push(stream, {.name = "wait for " + name_of_stream(event.stream), .after = {event}});
}

bool Machine::query(const Event& event) {
  MachineLock lock(mutex_);
  if (!scheduler_.is_done(event)) scheduler_.advance(lock, event);
  if (!scheduler_.is_done(event)) return false;
  if (event.stream >= 0) learn(host_of(event.stream), event.clock);
  return true;
}

void Machine::count_synchronization(int host, const std::string& cause) {
  std::array<char, 16> thread{};  // as long as Linux allows
  (void)::pthread_getname_np(::pthread_self(), thread.data(), thread.size());
  if (std::string_view(thread.data()) != "task queue") ++counts_[host].synchronizations[cause];
}

void Machine::synchronize(const Event& event, const std::string& cause) {
  if (event.stream < 0) return;
  MachineLock lock(mutex_);
  const int host = host_of(event.stream);
  count_synchronization(host, cause);
  scheduler_.block_until(lock, [&] { return scheduler_.is_done(event); });
  learn(host, event.clock);
}

void Machine::synchronize_device(int device, const std::string& cause) {
  MachineLock lock(mutex_);
  const int host = hosts_.at(device);
  count_synchronization(host, cause);
  std::vector<Event> ends;
  for (int i = 0; i < streams_per_device; ++i) ends.push_back(end_of(actor_of(device, i)));
  scheduler_.block_until(lock, [&] {
    return std::ranges::all_of(ends, [&](const Event& end) { return scheduler_.is_done(end); });
  });
  for (const Event& end : ends) learn(host, end.clock);
}

void Machine::learn(int host, const Clock& clock) {
  join(host_clocks_[host], clock);
  pinned_.end_copies([&](Actor stream) -> const Clock& { return host_clocks_[host_of(stream)]; });
}

// Called by the SIGSEGV handler, in the thread that touched the address.
void Machine::on_touch(const void* address) {
  MachineLock lock(mutex_);
  if (memory_.is_device(address))
    reports_.add(Fault::touch, "host code touched device memory",
                 ", " + blocks_.describe(memory_.offset_of(address)));
  else
    reports_.add(Fault::touch, "host code touched pinned memory of a copy in flight:" +
                                   pinned_.describe(address));
}

}  // namespace lockstep::test::accelerator
