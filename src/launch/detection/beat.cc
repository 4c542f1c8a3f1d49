#include "launch/detection/beat.h"

#include "base/environment.h"
#include "base/log.h"
#include "base/text.h"
#include "launch/detection/rank_info.h"
#include "launch/environment.h"
#include "sys/thread.h"

#include <lockstep/store/open.h>

#include <mutex>
#include <thread>

#include <unistd.h>

namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds time_to_come{30};

// A store that does not answer may come back before the agent gives this rank up.
[[noreturn]] void beat(const std::string& address, const std::string& secret,
                       const std::string& key, Duration interval) {
  for (;; std::this_thread::sleep_for(interval)) {
    try {
      const auto store = open_store(address, secret, time_to_come);
      for (;; std::this_thread::sleep_for(interval)) store->add(key, 1);
    } catch (const std::exception& error) {
      log::debug("signs of life stop until the store can be reached: {}", error.what());
    }
  }
}

}  // namespace

std::string beat_key(std::string_view worker) { return "lockstep-run/beat/" + std::string(worker); }

void start_beating() {
  const auto wanted = environment::text(variable::beat);
  const auto interval = wanted ? parse_duration(*wanted) : std::nullopt;
  const auto address = environment::text(variable::store);
  const auto worker = environment::text(variable::worker);
  const auto name = worker ? worker : environment::text(variable::rank);
  if (!interval || *interval <= Duration::zero() || !address || !name) return;
  static std::mutex mutex;
  static pid_t process = 0;  // that has the thread: a child that was forked has not
  const std::lock_guard lock(mutex);
  if (process == ::getpid()) return;
  process = ::getpid();
  sys::Thread("beat", [address = *address, secret = read_secret(), key = beat_key(*name),
                       interval = *interval] {
    beat(address, secret, key, interval);
  }).detach();
}

}  // namespace lockstep::launch
