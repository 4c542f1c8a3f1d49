#include "launch/round_source.h"

#include "sys/topology.h"

#include <lockstep/base/error.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace lockstep::launch {

RoundSource::RoundSource(RoundStore store)
    : store_(std::move(store)),
      host_(sys::host_name()),
      changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!changed_) throw SystemError("making an eventfd", errno);
}

JoinRequest RoundSource::empty_join_request() const {
  return {.node = node_,
          .host = host_,
          .address = address_,
          .port = free_port(),
          .failed = false,
          .workers = {}};
}

std::vector<RoundEvent> RoundSource::take_events() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(changed_.get(), &count, sizeof(count));
  const Lock lock(events_mutex_);
  return std::exchange(events_, {});
}

void RoundSource::emit(RoundEvent event) {
  {
    const Lock lock(events_mutex_);
    if (over_) return;
    over_ = event.kind == RoundEvent::Kind::over;
    events_.push_back(std::move(event));
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = ::write(changed_.get(), &one, sizeof(one));
}

OneRound::OneRound(RoundStore store) : RoundSource(std::move(store)) {
  address_ = "127.0.0.1";
  emit({.kind = RoundEvent::Kind::rendezvous});
}

std::string OneRound::host(int) const { return host_; }

void OneRound::request_join(int, const JoinRequest& request) {
  emit({.kind = RoundEvent::Kind::begin, .plan = plan_round(nullptr, {request})});
}

void OneRound::fail(const RoundPlan&, const RunResult& failure) { end_run(failure); }

void OneRound::done(int) { end_run({}); }

void OneRound::stop(const RunResult& stopped, bool) { end_run(stopped); }

void OneRound::end_run(const RunResult& result) {
  emit({.kind = RoundEvent::Kind::over, .result = result});
}

}  // namespace lockstep::launch
