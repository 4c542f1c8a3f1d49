#include "launch/hang_watch.h"

#include "base/log.h"
#include "launch/detection/beat.h"
#include "sys/process_stat.h"

#include <lockstep/base/error.h>
#include <lockstep/store/tcp_store.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr int looks_until_hung = 5;

}  // namespace

HangWatch::HangWatch(Duration hung_after, std::function<std::shared_ptr<Store>()> open)
    : hung_after_(hung_after),
      open_(std::move(open)),
      changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!changed_) throw SystemError("making an eventfd", errno);
  thread_ = sys::Thread("hang watch", [this] { run(); });
}

HangWatch::~HangWatch() {
  {
    const Lock lock(mutex_);
    closing_ = true;
    if (auto* store = dynamic_cast<TcpStore*>(store_.get())) store->disconnect();
  }
  changed_here_.notify_all();
  thread_.join();
}

void HangWatch::watch(std::map<std::string, pid_t> workers) {
  const Lock lock(mutex_);
  wanted_ = std::move(workers);
}

std::set<std::string> HangWatch::take_hung() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(changed_.get(), &count, sizeof(count));
  const Lock lock(mutex_);
  return std::exchange(hung_, {});
}

void HangWatch::run() {
  std::map<std::string, Watched> watched;
  Lock lock(mutex_);
  while (!closing_) {
    const auto wanted = wanted_;
    lock.unlock();
    std::erase_if(watched, [&](const auto& entry) {
      const auto same = wanted.find(entry.first);
      return same == wanted.end() || same->second != entry.second.pid;
    });
    for (const auto& [name, pid] : wanted)
      watched.try_emplace(
          name, Watched{pid, HeartbeatMonitor(hung_after_, 2 * hung_after_ / looks_until_hung)});
    bool failed = false;
    try {
      look(opened().get(), watched);
    } catch (const std::exception& error) {
      log::debug("looking for signs of life: {}", error.what());
      failed = true;
      look(nullptr, watched);
    }
    lock.lock();
    if (failed) store_.reset();
    changed_here_.wait_for(lock.native(), hung_after_ / looks_until_hung,
                           [&]() LOCKSTEP_REQUIRES(mutex_) { return closing_; });
  }
}

std::shared_ptr<Store> HangWatch::opened() {
  {
    const Lock lock(mutex_);
    if (store_) return store_;
  }
  std::shared_ptr<Store> store = open_();
  const Lock lock(mutex_);
  if (closing_) throw Aborted("the watch ends");
  return store_ = std::move(store);
}

void HangWatch::look(Store* store, std::map<std::string, Watched>& watched) {
  for (auto& [name, worker] : watched) {
    const std::string sign = sign_of(store, name, worker);
    const auto now = Clock::now();
    worker.monitor.note(sign, now);
    if (!worker.monitor.lost(now)) continue;
    {
      const Lock lock(mutex_);
      hung_.insert(name);
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t size = ::write(changed_.get(), &one, sizeof(one));
  }
}

// Something that changes while the worker lives.
std::string HangWatch::sign_of(Store* store, const std::string& name, Watched& watched) {
  if (store != nullptr)
    if (const auto beats = store->try_get(beat_key(name))) return "beat " + *beats;
  const auto stat = sys::read_process_stat(watched.pid);
  const bool stopped = stat && (stat->state == 'T' || stat->state == 't');
  return stopped ? "stopped" : "look " + std::to_string(++watched.looks);
}

}  // namespace lockstep::launch
