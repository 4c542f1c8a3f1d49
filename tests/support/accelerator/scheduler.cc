#include "support/accelerator/scheduler.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace lockstep::test::accelerator {
namespace {

// Threads of the library poll continuously, also while the program launches tasks. If each of these
// polls ran a task, tasks would not run late.
constexpr int polls_per_task = 8;
constexpr auto look = std::chrono::milliseconds(50);

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

void Scheduler::choose_by(std::uint64_t seed, bool lazy, std::chrono::milliseconds longest_idle) {
  random_.seed(seed);
  is_lazy_ = lazy;
  longest_idle_ = longest_idle;
  runnable_.notify_one();
}

void Scheduler::push(Actor stream, Task task) {
  auto& queue = queues_.at(stream);
  polls_since_push_ = 0;
  ++queue.given;
  queue.tasks.push_back(std::move(task));
  if (may_run()) runnable_.notify_one();
}

bool Scheduler::is_done(const Event& event) const {
  return event.stream < 0 || done(event.stream) >= event.sequence;
}

bool Scheduler::may_begin(const Task& task) const {
  return std::ranges::all_of(task.after, [&](const Event& event) { return is_done(event); });
}

bool Scheduler::is_ready(const Queue& queue) const {
  if (queue.tasks.empty() || queue.is_running) return false;
  const Task& task = queue.tasks.front();
  return may_begin(task) && (!task.gate || task.gate->is_open());
}

std::vector<Actor> Scheduler::ready_streams() {
  for (auto& queue : queues_)
    if (!queue.tasks.empty() && queue.tasks.front().gate && may_begin(queue.tasks.front()))
      queue.tasks.front().gate->arrive();
  std::vector<Actor> ready;
  for (Actor stream = 0; stream < stream_count; ++stream)
    if (is_ready(queues_[stream])) ready.push_back(stream);
  return ready;
}

void Scheduler::work(MachineLock& lock) {
  for (;;) {
    const auto ready = may_run() ? ready_streams() : std::vector<Actor>();
    if (ready.empty())
      runnable_.wait(lock);
    else
      run_one(lock, ready[random_() % ready.size()]);
  }
}

void Scheduler::run_one(MachineLock& lock, Actor stream) {
  auto& queue = queues_[stream];
  auto task = std::move(queue.tasks.front());
  queue.tasks.pop_front();
  queue.is_running = true;
  std::string error;
  lock.unlock();
  try {
    if (task.run) task.run();
  } catch (const std::exception& problem) {
    error = first_line(problem.what());
  }
  task.run = nullptr;  // frees tensors, which locks
  lock.lock();
  if (!error.empty())
    reports_.add(Fault::kernel,
                 "'" + task.name + "' on " + name_of_stream(stream) + " failed: " + error);
  queue.is_running = false;
  ++queue.done;
  settle_waiters();
}

void Scheduler::settle_waiters() {
  const auto satisfied = std::erase_if(waiters_, [](Waiter* waiter) {
    waiter->is_satisfied = waiter->is_satisfied || waiter->done();
    return waiter->is_satisfied;
  });
  if (satisfied > 0) satisfied_.notify_all();
}

std::uint64_t Scheduler::progress() const {
  std::uint64_t sum = 0;
  for (const auto& queue : queues_) sum += queue.done + queue.given + (queue.is_running ? 1 : 0);
  return sum;
}

void Scheduler::block_until(MachineLock& lock, std::function<bool()> done) {
  Waiter waiter{std::move(done)};
  waiters_.push_back(&waiter);
  settle_waiters();
  runnable_.notify_one();
  auto seen = progress();
  auto idle = std::chrono::milliseconds(0);
  while (!waiter.is_satisfied) {
    if (satisfied_.wait_for(lock, look) == std::cv_status::no_timeout) continue;
    const bool runs = std::ranges::any_of(queues_, [](auto& queue) { return queue.is_running; });
    idle = seen == progress() && !runs ? idle + look : std::chrono::milliseconds(0);
    seen = progress();
    if (idle < longest_idle_) continue;
    report_stall();
    idle = std::chrono::milliseconds(0);
  }
}

void Scheduler::advance(MachineLock& lock, const Event& event) {
  if (!is_lazy_) return;
  const bool host_waits = ++polls_since_push_ >= polls_per_task;
  if ((++polls_ % polls_per_task != 0 && !host_waits) || ready_streams().empty()) return;
  auto finished = [this] {
    std::uint64_t sum = 0;
    for (const auto& queue : queues_) sum += queue.done;
    return sum;
  };
  block_until(lock, [=, this, before = finished()] {
    if (!host_waits) return finished() > before;
    return is_done(event) || ready_streams().empty();
  });
}

void Scheduler::report_stall() {
  std::string text = "a host waits and no stream can go on";
  for (Actor stream = 0; stream < stream_count; ++stream) {
    if (queues_[stream].tasks.empty()) continue;
    const Task& task = queues_[stream].tasks.front();
    text += "; " + name_of_stream(stream) + " is at '" + task.name + "'";
    if (task.gate) text += " (" + task.gate->state() + ")";
  }
  reports_.add(Fault::stall, text);
  for (auto& queue : queues_)
    for (auto& task : queue.tasks)
      if (task.gate) task.gate->give_up();
  runnable_.notify_one();
}

}  // namespace lockstep::test::accelerator
