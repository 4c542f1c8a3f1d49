#include "support/accelerator/machine.h"

#include <algorithm>
#include <array>
#include <cstring>
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
                  [&](const Block& block, const Clock& clock) { checker_.forget(block, clock); },
                  [&](const Block& block) { note_reusable(block); });
  const std::size_t begin = blocks_.allocate(stream, bytes);
  checker_.note_given_out(begin);
  return memory_.device_address(begin);
}

void Machine::release(void* address) {
  MachineLock lock(mutex_);
  blocks_.release(
      memory_.offset_of(address), [&](Actor stream) { return end_of(stream); },
      [&](const Block& block) { note_reusable(block); });
}

void Machine::note_reusable(const Block& block) {
  Clock clock = clocks_.at(block.stream);
  join(clock, host_clocks_[host_of(block.stream)]);
  checker_.note_reusable(block, clock);
}

void Machine::record_stream(const void* address, Actor stream) {
  MachineLock lock(mutex_);
  if (address != nullptr && memory_.is_device(address))
    blocks_.record(memory_.offset_of(address), stream);
}

void* Machine::allocate_pinned(std::size_t bytes) {
  MachineLock lock(mutex_);
  void* address = pinned_.allocate(bytes);
  // The copies of its earlier users have ended.
  const std::size_t begin = first_pinned_offset + memory_.pinned_offset_of(address);
  checker_.forget_all(begin, begin + bytes);
  return address;
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
      std::make_shared<Operation>(Operation{.name = launch.name,
                                            .stream = stream,
                                            .time = ++clock[stream],
                                            .sequence = scheduler_.given(stream) + 1});
  Checker::Findings found;
  for (const Access& access : launch.accesses) checker_.check(access, operation, clock, found);
  if (!found.unwritten.empty()) {
    poison(stream, found);
    ++operation->sequence;
  }
  if (launch.pinned.address != nullptr)
    pinned_.begin_copy(launch.pinned.address, launch.pinned.writes, launch.name, stream,
                       operation->time);
  ++counts_[host_of(stream)].launches;
  scheduler_.push(stream, {.name = std::move(launch.name),
                           .run = std::move(launch.run),
                           .after = std::move(found.unordered),
                           .gate = launch.gate});
}

void Machine::poison(Actor stream, const Checker::Findings& found) {
  constexpr int byte_of_nan = 0xFF;
  std::vector<std::pair<void*, std::size_t>> places;
  for (const Access& bytes : found.unwritten)
    places.emplace_back(memory_.kernel_address(memory_.device_address(bytes.begin)),
                        bytes.end - bytes.begin);
  scheduler_.push(stream, {.name = "memory that nothing has written",
                           .run =
                               [places = std::move(places)] {
                                 for (const auto& [address, bytes] : places)
                                   std::memset(address, byte_of_nan, bytes);
                               },
                           .after = found.unordered});
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
