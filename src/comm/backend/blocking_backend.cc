#include "comm/backend/blocking_backend.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "sys/own_process.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace lockstep {
namespace {

using diagnose::FailureKind;

// Time limit for a run to end after the backend was closed.
constexpr auto longest_end = std::chrono::seconds(5);

// Most launched calls take tens of microseconds; longer calls are polled less often.
constexpr Duration shortest_pause = std::chrono::microseconds(5);
constexpr Duration longest_pause = std::chrono::microseconds(200);
constexpr Duration between_looks = std::chrono::milliseconds(100);

int place_in(std::span<const int> ranks, int rank) {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

void check_device(const Call& call, BlockingCollectives& collectives) {
  const auto& tensor = call.input.defined() ? call.input : call.output;
  if (!tensor.defined()) return;
  if (auto objection = collectives.objection_to(tensor); !objection.empty())
    throw InvalidArgument(formatted("{}: the backend {} {}", name_of(call.collective),
                                    collectives.name(), objection));
}

}  // namespace

std::string not_on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {};
  return formatted("takes tensors in the CPU's memory; this one is on {}", tensor.device().str());
}

BlockingBackend::BlockingBackend(std::shared_ptr<BlockingCollectives> collectives,
                                 std::shared_ptr<Store> store, GroupNames group, int rank, int size,
                                 Duration join_timeout, std::shared_ptr<diagnose::CallWatch> watch)
    : Backend(rank, size),
      collectives_(std::move(collectives)),
      store_(std::move(store)),
      group_(std::move(group)),
      join_timeout_(join_timeout),
      diagnosis_(store_, group_, rank, size),
      calls_(std::make_shared<diagnose::OpenCalls>(group_.name())),
      watch_(watch ? std::move(watch) : std::make_shared<diagnose::CallWatch>(store_)),
      watched_(watch_->join(group_, rank, size, calls_, [this](const std::string& sentence) {
        fail(sentence.empty() ? FailureKind::peer_lost : FailureKind::mismatch, CallRecord(),
             sentence);
      })) {}

BlockingBackend::~BlockingBackend() {
  bool complete = calls_->drain(grace_);
  watch_->leave(watched_, complete, grace_.is_by_exception());
  // Without this, a queue could wait forever.
  if (!complete) collectives_->close("a rank left before its operations were complete");
  for (auto& [channel, queue] : queues_) {
    if (!queue->end(complete ? Deadline::never().left() : longest_end))
      log::warning("{}: an operation of group {} cannot be ended; its thread stays", name(),
                   group_.name());
  }
  std::unique_lock over(life_->mutex);
  life_->is_over = true;
}

void BlockingBackend::post(const Call& call) {
  check_device(call, *collectives_);
  calls_->refuse_if_failed(call.collective);
  auto& queue = queues_[call.id.channel];
  if (!queue) queue = std::make_unique<sys::TaskQueue>();
  PostedCall posted(call);
  calls_->add(call.id.channel, posted.record(), posted.fingerprint);
  watched_->note_post();
  auto launched = launch(posted);
  if (launched) {
    launched_.add(call.id, launched, call.timeout);
    posted.input = posted.output = at::Tensor();
  }
  queue->push(
      [this, life = life_, collectives = collectives_, posted = std::move(posted),
       launched = std::move(launched)] { carry_out(life, this, *collectives, posted, launched); });
}

std::shared_ptr<Launched> BlockingBackend::launch(const PostedCall& call) {
  try {
    return collectives_->launch(call);
  } catch (...) {
    fail_by(std::current_exception(), call);
    wait(call.id);  // throws the group's error, which another thread may be about to agree on
    throw;
  }
}

void BlockingBackend::carry_out(const std::shared_ptr<Life>& life, BlockingBackend* backend,
                                BlockingCollectives& collectives, const PostedCall& call,
                                const std::shared_ptr<Launched>& launched) {
  // A new thread's current device is number 0, whose GPU may be another rank's. An event that the
  // thread queries or destroys, also after this function, would make a context there.
  try {
    if (launched)
      make_current(launched->end->device());
    else if (call.after)
      make_current(call.after->device());
  } catch (const std::exception&) {
    // The call has the device's error, too.
  }
  {
    std::shared_lock lock(life->mutex);
    if (life->is_over || backend->calls_->has_failed()) return;
  }
  std::exception_ptr problem;
  try {
    if (launched)
      follow(*life, *backend, collectives, call, call.id, *launched);
    else
      collectives.run(call);
  } catch (...) {
    problem = std::current_exception();
  }
  std::shared_lock lock(life->mutex);
  if (life->is_over) return;
  if (problem) return backend->fail_by(problem, call);
  // A launched call also ends when its backend is closed.
  if (launched && backend->calls_->has_failed()) return;
  backend->launched_.complete(call.id);
  backend->calls_->complete(call.id);
}

void BlockingBackend::follow(Life& life, BlockingBackend& backend, BlockingCollectives& collectives,
                             const CallRecord& call, CallId id, Launched& launched) {
  auto pause = shortest_pause;
  auto look = Deadline::after(between_looks);
  bool is_noticed = false;
  while (!launched.is_complete()) {
    {
      std::shared_lock lock(life.mutex);
      if (life.is_over || backend.calls_->has_failed()) throw Aborted("the group has ended");
      if (look.passed()) {
        launched.check();
        collectives.check_peers();
        backend.look_at_wait(call, id, is_noticed);
        look = Deadline::after(between_looks);
      }
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, longest_pause);
  }
}

void BlockingBackend::look_at_wait(const CallRecord& call, CallId id, bool& is_noticed) {
  const auto wait = launched_.wait_of(id);
  if (!wait) return;
  if (wait->waited >= wait->timeout) return fail(FailureKind::timeout, call, "");
  if (is_noticed || wait->waited < diagnose::OpenCalls::notice_after) return;
  is_noticed = true;
  if (wait->timeout != Duration::max()) log::warning("{}", diagnosis_.overdue(call, wait->waited));
}

bool BlockingBackend::order(CallId id, std::function<void()> when_complete) {
  const auto launched = launched_.wait_for(id, std::move(when_complete));
  if (!launched) return false;
  if (calls_->has_failed()) wait(id);  // throws, unless the call was complete before
  launched->precede_current();
  return true;
}

void BlockingBackend::fail_by(const std::exception_ptr& problem, const CallRecord& call) {
  try {
    std::rethrow_exception(problem);
  } catch (const CallDiffers& found) {
    fail(FailureKind::mismatch, call, diagnosis_.difference(call, found.rank()));
  } catch (const Mismatch& error) {  // of a part of the operation, with its own message
    auto sentence = diagnosis_.difference(call);
    fail(FailureKind::mismatch, call, sentence.empty() ? error.what() : sentence);
  } catch (const std::exception& error) {
    fail(FailureKind::peer_lost, call, first_line(error.what()));
  }
}

void BlockingBackend::wait(CallId id) {
  calls_->wait(id,
               {.on_deadline = [this](const auto& call) { fail(FailureKind::timeout, call, ""); },
                .on_notice =
                    [this](const auto& call, Duration waited) {
                      log::warning("{}", diagnosis_.overdue(call, waited));
                    }});
}

void BlockingBackend::abort(std::string_view reason) {
  fail(FailureKind::aborted, CallRecord(), reason);
}

void BlockingBackend::fail(FailureKind kind, const CallRecord& call, std::string_view detail) {
  if (!calls_->begin_to_fail()) return;
  calls_->fail(diagnosis_.agree(kind, call, detail, [&] { collectives_->close(detail); }));
}

std::shared_ptr<Backend> BlockingBackend::subset(std::span<const int> ranks,
                                                 std::string_view name) {
  std::string group(name);
  if (auto other = collectives_->backend_of(ranks, group)) return other;
  auto collectives = collectives_->subset(ranks, group, place_in(ranks, rank()), join_timeout_);
  return part(std::move(collectives), ranks, std::move(group));
}

std::shared_ptr<Backend> BlockingBackend::on_host(std::string_view name) {
  std::string group(name);
  auto collectives = collectives_->on_host(group, join_timeout_);
  if (!collectives) return Backend::on_host(name);
  return part(std::move(collectives), all_ranks(size()), std::move(group));
}

std::shared_ptr<Backend> BlockingBackend::part(std::shared_ptr<BlockingCollectives> collectives,
                                               std::span<const int> ranks, std::string name) const {
  return sys::make_shared_of_process<BlockingBackend>(
      std::move(collectives), store_, group_.part(ranks, std::move(name)), place_in(ranks, rank()),
      static_cast<int>(ranks.size()), join_timeout_, watch_);
}

}  // namespace lockstep
