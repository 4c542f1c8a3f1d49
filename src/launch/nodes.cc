#include "launch/nodes.h"

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "base/visible.h"

#include <lockstep/base/error.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds listening_turn{1};  // how long the destructor waits at most
constexpr int heartbeats_until_lost = 5;

// What ranks must not write may be there all the same: they have the secret too.
RunResult spoiled(const std::string& key, const std::string& why) {
  return {
      .kind = RunResult::Kind::failed,
      .node = -1,
      .how = formatted("the store's key {} holds what no agent wrote ({}); keys that begin with "
                       "lockstep-run/ are the agents' own",
                       key, visible(why, 200))};
}

RunResult node_0_lost(const std::string& how) {
  return {.kind = RunResult::Kind::failed,
          .node = 0,
          .how = "its agent, which serves the store, " + how};
}

std::string silence(const NodeSpec& spec) {
  return formatted("has not answered for {}: it is stopped, or its machine cannot be reached",
                   format_duration(spec.lost_after));
}

}  // namespace

Nodes::Nodes(const NodeSpec& spec, int ranks, WaitingLines& lines)
    : spec_(spec),
      rendezvous_(join_rendezvous(spec, ranks, lines)),
      changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!changed_) throw SystemError("making an eventfd", errno);
  in_background([this] { listen(); });
  in_background([this] { heartbeat(); });
}

Nodes::~Nodes() {
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  closing_changed_.notify_all();
  if (unanswered_) rendezvous_.store->disconnect();
  for (sys::Thread& thread : threads_) thread.join();
}

std::string Nodes::host(int node) const {
  const auto& nodes = rendezvous_.node_list.nodes;
  return node >= 0 && node < std::ssize(nodes) ? nodes[node].host : "unknown";
}

std::string Nodes::name(int node) const { return formatted("node {} (host {})", node, host(node)); }

void Nodes::say(const RunResult& run_result) {
  in_background([this, run_result] { write(run_result); });
}

void Nodes::say_done() {
  in_background([this] {
    try {
      if (rendezvous_.store->add(key::done, 1) < spec_.nodes) return;
    } catch (const BadInput& error) {
      return object(key::done, error.what());
    }
    write({});
  });
}

void Nodes::give_up(const std::string& why) {
  try {
    write({.kind = RunResult::Kind::failed, .node = spec_.node, .how = why});
  } catch (const Error& error) {
    log::debug("telling the other nodes: {}", error.what());
  }
  static_cast<void>(wait_for_the_others(*rendezvous_.store, spec_, Deadline::after(time_to_read)));
}

std::optional<RunResult> Nodes::take_run_result() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(changed_.get(), &count, sizeof(count));
  Lock lock(mutex_);
  return std::exchange(heard_, std::nullopt);
}

void Nodes::begin_to_leave(Deadline deadline) {
  in_background([this, deadline] {
    bool left = false;
    while (!left && !closing_ && !deadline.passed())
      left = wait_for_the_others(*rendezvous_.store, spec_,
                                 deadline.or_sooner(Deadline::after(listening_turn)));
    have_left_ = true;
    notify();
  });
}

// What fails here fails because the store is lost, which the listener notices too.
void Nodes::in_background(std::function<void()> action) {
  threads_.emplace_back("other nodes", [action = std::move(action)] {
    try {
      action();
    } catch (const std::exception& error) {
      log::debug("talking to the other nodes: {}", error.what());
    }
  });
}

void Nodes::listen() noexcept {
  while (!closing_) {
    try {
      return hear(parse_run_result(
          rendezvous_.store->get(key::run_result, Deadline::after(listening_turn))));
    } catch (const Timeout&) {
      continue;  // nothing has happened
    } catch (const BadInput& error) {
      return hear(spoiled(key::run_result, error.what()));
    } catch (const std::exception& error) {
      return hear(node_0_lost(formatted(
          "has gone: it was killed, or its machine cannot be reached ({})", error.what())));
    }
  }
}

void Nodes::heartbeat() noexcept {
  const Duration interval = spec_.lost_after / heartbeats_until_lost;
  HeartbeatMonitor others(spec_.nodes, spec_.lost_after, 2 * interval);
  while (!closing_) {
    try {
      heartbeat_once(others);
    } catch (const Timeout&) {
      return give_up_node_0();
    } catch (const BadInput& error) {
      return object(key::heartbeat(spec_.node), error.what());
    } catch (const std::exception& error) {
      return log::debug("watching over the other nodes: {}", error.what());  // the listener hears
    }
    pause(interval);
  }
}

void Nodes::heartbeat_once(HeartbeatMonitor& others) {
  rendezvous_.store->add(key::heartbeat(spec_.node), 1);
  if (spec_.node != 0) return;
  for (int node = 1; node < spec_.nodes; ++node)
    others.note(node, rendezvous_.store->try_get(key::heartbeat(node)).value_or(""), Clock::now());
  if (const auto lost = others.lost(Clock::now())) {
    write({.kind = RunResult::Kind::failed, .node = *lost, .how = "its agent " + silence(spec_)});
    rendezvous_.store->set(key::left(*lost), "");  // nobody waits for it
  }
}

void Nodes::write(const RunResult& run_result) {
  static_cast<void>(rendezvous_.store->compare_set(key::run_result, "", to_text(run_result)));
}

void Nodes::give_up_node_0() {
  const RunResult run_result = node_0_lost(silence(spec_));
  hear(run_result);
  unanswered_ = true;
  try {
    write(run_result);  // should it go on one day, it learns why it is alone
  } catch (const Error& error) {
    log::debug("telling node 0: {}", error.what());
  }
}

// The listener then hears it, or what was said before.
void Nodes::object(const std::string& key, const std::string& why) noexcept {
  try {
    write(spoiled(key, why));
  } catch (const std::exception& error) {
    log::debug("telling the other nodes: {}", error.what());
  }
}

void Nodes::pause(Duration time) {
  Lock lock(mutex_);
  closing_changed_.wait_for(lock.native(), time, [&] { return closing_.load(); });
}

void Nodes::hear(RunResult run_result) {
  {
    Lock lock(mutex_);
    if (!std::exchange(listening_, false)) return;
    heard_ = std::move(run_result);
  }
  notify();
}

void Nodes::notify() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = ::write(changed_.get(), &one, sizeof(one));
}

}  // namespace lockstep::launch
