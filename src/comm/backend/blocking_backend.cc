#include "comm/backend/blocking_backend.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/log.h>
#include <lockstep/base/text.h>

#include "comm/backend/one_line.h"
#include "sys/own_process.h"

#include <algorithm>
#include <chrono>

namespace lockstep {
namespace {

using watch::End;

constexpr auto notice_after = std::chrono::seconds(30);
// What a run may take to end after the engine was closed.
constexpr auto longest_end = std::chrono::seconds(5);

void check_device(const Call& call, BlockingEngine& engine) {
  const auto& tensor = call.input.defined() ? call.input : call.output;
  if (!tensor.defined()) return;
  if (auto objection = engine.objection_to(tensor); !objection.empty())
    throw InvalidArgument(
        formatted("{}: the engine {} {}", name_of(call.collective), engine.name(), objection));
}

}  // namespace

std::string not_on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {};
  return formatted("takes tensors in the CPU's memory; this one is on {}", tensor.device().str());
}

BlockingBackend::BlockingBackend(std::shared_ptr<BlockingEngine> engine,
                                 std::shared_ptr<Store> store, std::string group, int rank,
                                 int size, Duration join_timeout,
                                 std::shared_ptr<watch::CallWatch> watch)
    : Backend(rank, size),
      engine_(std::move(engine)),
      store_(std::move(store)),
      group_(std::move(group)),
      join_timeout_(join_timeout),
      last_words_(store_, group_, rank, size),
      watch_(watch ? std::move(watch) : std::make_shared<watch::CallWatch>(store_)),
      member_(watch_->join(group_, rank, size, [this](const std::string& sentence) {
        fail(sentence.empty() ? End::lost : End::mismatch, PostedCall(), sentence);
      })) {}

BlockingBackend::~BlockingBackend() {
  bool complete = false;
  {
    std::unique_lock lock(mutex_);
    Duration longest{};
    for (const auto& [ticket, call] : open_) longest = std::max(longest, call.timeout);
    auto deadline = Deadline::after(grace_.patience(longest));
    while (!open_.empty() && !failure_ && !deadline.passed()) {
      changed_.wait_for(lock, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
    }
    complete = open_.empty() && !failure_;
    failure_.set(std::make_exception_ptr(Aborted("this rank has left the group")));
  }
  watch_->leave(member_, complete);
  // Or a queue would wait for ever.
  if (!complete) engine_->close("a rank left before its operations were complete");
  for (auto& [channel, queue] : queues_) {
    if (!queue->end(complete ? Deadline::never().left() : longest_end))
      log::warning("{}: an operation of group {} cannot be ended; its thread stays", name(),
                   group_);
  }
  std::unique_lock over(life_->mutex);
  life_->is_over = true;
}

std::uint64_t BlockingBackend::post(const Call& call) {
  std::lock_guard lock(mutex_);
  check_device(call, *engine_);
  failure_.refuse_if_any(name_of(call.collective), group_);
  ChannelKey channel{-1, -1};
  if (call.collective == Collective::send) channel = {rank(), call.root};
  if (call.collective == Collective::recv) channel = {call.root, rank()};
  auto& queue = queues_[channel];
  if (!queue) queue = std::make_unique<sys::TaskQueue>();
  PostedCall posted(call, ++counts_[channel]);
  auto ticket = ++last_ticket_;
  open_.emplace(ticket, posted.without_tensors());
  member_->note(posted);
  queue->push([this, life = life_, engine = engine_, ticket, posted = std::move(posted)] {
    carry_out(life, this, *engine, ticket, posted);
  });
  return ticket;
}

void BlockingBackend::carry_out(const std::shared_ptr<Life>& life, BlockingBackend* backend,
                                BlockingEngine& engine, std::uint64_t ticket,
                                const PostedCall& call) {
  {
    std::shared_lock lock(life->mutex);
    if (life->is_over || !backend->still_runs()) return;
  }
  std::exception_ptr problem;
  try {
    engine.run(call);
  } catch (...) {
    problem = std::current_exception();
  }
  std::shared_lock lock(life->mutex);
  if (life->is_over) return;
  if (problem) return backend->fail_by(problem, call);
  backend->note_complete(ticket);
}

void BlockingBackend::fail_by(const std::exception_ptr& problem, const PostedCall& call) {
  try {
    std::rethrow_exception(problem);
  } catch (const CallDiffers& found) {
    fail(End::mismatch, call, last_words_.difference(call, found.rank()));
  } catch (const Mismatch& error) {  // of a part of the operation, in words of its own
    auto sentence = last_words_.difference(call);
    fail(End::mismatch, call, sentence.empty() ? error.what() : sentence);
  } catch (const std::exception& error) {
    fail(End::lost, call, first_line(error.what()));
  }
}

bool BlockingBackend::still_runs() {
  std::lock_guard lock(mutex_);
  return !failure_ && !ending_;
}

void BlockingBackend::note_complete(std::uint64_t ticket) {
  std::lock_guard lock(mutex_);
  open_.erase(ticket);
  member_->note_complete();
  changed_.notify_all();
}

void BlockingBackend::wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  auto entry = open_.find(ticket);
  if (entry == open_.end()) return;
  auto call = entry->second;
  const auto begin = Clock::now();
  auto deadline = Deadline::after(call.timeout);
  auto notice = Deadline::after(notice_after);
  while (open_.contains(ticket)) {
    failure_.rethrow_if_any();
    if (!ending_ && deadline.passed()) {
      lock.unlock();
      fail(End::timeout, call, "");
      lock.lock();
      continue;
    }
    if (!ending_ && notice.passed()) {
      notice = Deadline::never();
      lock.unlock();
      say_notice(call, Clock::now() - begin);
      lock.lock();
      continue;
    }
    auto most = std::min<Duration>(deadline.left(), notice.left());
    changed_.wait_for(lock, ending_ ? Duration(std::chrono::seconds(1))
                                    : std::min<Duration>(most, std::chrono::hours(1)));
  }
}

void BlockingBackend::say_notice(const PostedCall& call, Duration waited) {
  try {
    log::warning("{}", last_words_.overdue(call, waited));
  } catch (const std::exception& error) {
    log::warning("after {} in {}{}; the store that would say more: {}", format_duration(waited),
                 describe(call), watch::words_of_group(group_), error.what());
  }
}

bool BlockingBackend::done(std::uint64_t ticket) {
  std::lock_guard lock(mutex_);
  return failure_ || !open_.contains(ticket);
}

void BlockingBackend::abort(std::string_view reason) { fail(End::aborted, PostedCall(), reason); }

void BlockingBackend::fail(End end, const PostedCall& call, std::string_view detail) {
  {
    std::lock_guard lock(mutex_);
    if (failure_ || ending_) return;
    ending_ = true;
  }
  auto error = last_words_.agree(end, call, detail, [&] { engine_->close(detail); });
  std::lock_guard lock(mutex_);
  failure_.set(std::move(error));
  changed_.notify_all();
}

std::shared_ptr<Backend> BlockingBackend::subset(std::span<const int> ranks,
                                                 std::string_view name) {
  auto place = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  auto size = static_cast<int>(ranks.size());
  std::string group(name);
  auto engine = engine_->subset(ranks, group, place, join_timeout_);
  return sys::make_shared_of_process<BlockingBackend>(std::move(engine), store_, std::move(group),
                                                      place, size, join_timeout_, watch_);
}

}  // namespace lockstep
