#include "launch/nodes.h"

#include "sys/blocked_signals.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/log.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr const char* done_key = "lockstep-run/done";
constexpr std::chrono::seconds listening_turn{1};  // how long the destructor waits at most

}  // namespace

Nodes::Nodes(const NodeSpec& spec, int ranks)
    : spec_(spec),
      gathering_(gather(spec, ranks)),
      changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!changed_) throw SystemError("making an eventfd", errno);
  in_background([this] { listen(); });
}

Nodes::~Nodes() {
  closing_ = true;
  for (std::thread& thread : threads_) thread.join();
}

std::string Nodes::host(int node) const {
  const auto& nodes = gathering_.roster.nodes;
  return node >= 0 && node < std::ssize(nodes) ? nodes[node].host : "unknown";
}

std::string Nodes::name(int node) const { return formatted("node {} (host {})", node, host(node)); }

void Nodes::say(const Verdict& verdict) {
  in_background([this, text = to_text(verdict)] {
    static_cast<void>(gathering_.store->compare_set(key::verdict, "", text));
  });
}

void Nodes::say_done() {
  in_background([this] {
    if (gathering_.store->add(done_key, 1) < spec_.nodes) return;
    static_cast<void>(gathering_.store->compare_set(key::verdict, "", to_text(Verdict{})));
  });
}

void Nodes::give_up(const std::string& why) {
  try {
    const Verdict verdict{.kind = Verdict::Kind::failed, .node = spec_.node, .how = why};
    static_cast<void>(gathering_.store->compare_set(key::verdict, "", to_text(verdict)));
  } catch (const Error& error) {
    log::debug("telling the other nodes: {}", error.what());
  }
  static_cast<void>(wait_for_the_others(*gathering_.store, spec_, Deadline::after(time_to_read)));
}

std::optional<Verdict> Nodes::take_verdict() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(changed_.get(), &count, sizeof(count));
  std::lock_guard lock(mutex_);
  return std::exchange(heard_, std::nullopt);
}

void Nodes::begin_to_leave(Deadline deadline) {
  in_background([this, deadline] {
    bool left = false;
    while (!left && !closing_ && !deadline.passed())
      left = wait_for_the_others(*gathering_.store, spec_,
                                 deadline.or_sooner(Deadline::after(listening_turn)));
    have_left_ = true;
    notify();
  });
}

// What fails here fails because the store is lost, which the listener notices too.
void Nodes::in_background(std::function<void()> action) {
  const sys::BlockedSignals blocked;
  threads_.emplace_back([action = std::move(action)] {
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
      hear(parse_verdict(gathering_.store->get(key::verdict, Deadline::after(listening_turn))));
      return;
    } catch (const Timeout&) {
      continue;  // nothing has happened
    } catch (const std::exception& error) {
      hear({.kind = Verdict::Kind::failed,
            .node = 0,
            .how = formatted("its agent, which serves the store, has gone: it was killed, or its "
                             "machine cannot be reached ({})",
                             error.what())});
      return;
    }
  }
}

void Nodes::hear(Verdict verdict) {
  {
    std::lock_guard lock(mutex_);
    heard_ = std::move(verdict);
  }
  notify();
}

void Nodes::notify() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = ::write(changed_.get(), &one, sizeof(one));
}

}  // namespace lockstep::launch
