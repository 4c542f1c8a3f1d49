#include "comm/backends/local/backend.h"

#include "base/format.h"
#include "base/text.h"
#include "comm/backend/accelerator.h"
#include "comm/backend/tensors.h"
#include "comm/call/record.h"
#include "sys/own_process.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>

namespace lockstep::local {
namespace {

void copy_flat(const at::Tensor& to, const at::Tensor& from) {
  if (to.const_data_ptr() != from.const_data_ptr()) flat(to).copy_(flat(from));
}

// Combines on the device of rank 0; copy_flat() copies the result to the other devices.
at::Tensor combined(const std::vector<PostedCall>& calls) {
  const auto device = calls.front().input.device();
  std::vector<at::Tensor> values;
  for (const auto& call : calls) values.push_back(flat(call.input).to(device));
  return reduce_in_tree(values, calls.front().op);
}

at::Tensor tensor_at(void* data, const at::Tensor& like) {
  return at::for_blob(data, like.sizes())
      .strides(like.strides())
      .options(like.options())
      .target_device(like.device())
      .make_tensor();
}

// Returns the call with tensors that use the memory of the posted tensors, and do not own it. The
// operations of this file run under the lock of a World. On the posted tensors they could take a
// lock of a storage's owner (dispatch), which a rank that waits for the World may hold.
PostedCall of_memory(PostedCall call) {
  if (call.output.defined()) call.output = tensor_at(call.output.mutable_data_ptr(), call.output);
  if (call.input.defined())
    call.input = tensor_at(const_cast<void*>(call.input.const_data_ptr()), call.input);
  return call;
}

at::Tensor part_of(const at::Tensor& tensor, const std::vector<std::int64_t>& counts, int size,
                   int part) {
  auto all = tensor.numel();
  return flat(tensor).narrow(0, part_begin(counts, all, size, part),
                             part_elements(counts, all, size, part));
}

void all_gather_into(const PostedCall& to, const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  for (int rank = 0; rank < size; ++rank)
    copy_flat(part_of(to.output, to.output_counts, size, rank), calls[rank].input);
}

void all_to_all(const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  for (int to = 0; to < size; ++to) {
    for (int from = 0; from < size; ++from) {
      copy_flat(part_of(calls[to].output, calls[to].output_counts, size, from),
                part_of(calls[from].input, calls[from].input_counts, size, to));
    }
  }
}

void reduce_scatter(const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  auto result = combined(calls);
  for (int rank = 0; rank < size; ++rank)
    copy_flat(calls[rank].output, part_of(result, calls[rank].input_counts, size, rank));
}

void scatter(const std::vector<PostedCall>& calls) {
  int size = static_cast<int>(calls.size());
  const auto& root = calls[calls.front().root];
  for (int rank = 0; rank < size; ++rank)
    copy_flat(calls[rank].output, part_of(root.input, {}, size, rank));
}

// Orders this thread's streams after the work that the posting rank had queued.
void begin_after(const PostedCall& call) {
  if (call.after) call.after->precede_current();
}

// Blocks until the device has finished, so that work that any thread queues later is ordered after
// it.
void finish_on_device(const PostedCall& call) {
  if (call.after) stream_point(call.input.defined() ? call.input : call.output)->wait();
}

void perform_now(const std::vector<PostedCall>& calls) {
  const auto& first = calls.front();
  switch (first.collective) {
    case Collective::all_reduce: {
      auto result = combined(calls);
      for (const auto& call : calls) copy_flat(call.output, result);
      return;
    }
    case Collective::reduce:
      return copy_flat(calls[first.root].output, combined(calls));
    case Collective::broadcast:
      for (const auto& call : calls) copy_flat(call.output, calls[first.root].input);
      return;
    case Collective::all_gather:
      for (const auto& call : calls) all_gather_into(call, calls);
      return;
    case Collective::gather:
      return all_gather_into(calls[first.root], calls);
    case Collective::reduce_scatter:
      return reduce_scatter(calls);
    case Collective::all_to_all:
      return all_to_all(calls);
    case Collective::scatter:
      return scatter(calls);
    case Collective::barrier:
    case Collective::send:
    case Collective::recv:
      return;
  }
}

// calls[r] is rank r's call; all calls agree (same_call). Writes every output.
void perform(const std::vector<PostedCall>& calls) {
  at::NoGradGuard no_grad;
  for (const auto& call : calls) begin_after(call);
  perform_now(calls);
  for (const auto& call : calls) finish_on_device(call);
}

// Performs one message, given its two ends.
void perform(const PostedCall& send, const PostedCall& recv) {
  at::NoGradGuard no_grad;
  begin_after(send);
  begin_after(recv);
  copy_flat(recv.output, send.input);
  finish_on_device(send);
  finish_on_device(recv);
}

}  // namespace

using diagnose::FailureKind;

World::World(int size, GroupNames names) : size_(size), names_(std::move(names)), members_(size) {}

void World::post(int rank, const Call& call) {
  Lock lock(mutex_);
  failure_.refuse_if_any(name_of(call.collective), names_.name());
  auto& pending = pending_[call.id];
  auto& posted = pending.emplace(rank, PostedCall(call)).first->second;
  members_[rank].last_call = posted.record();
  check_agreement(pending, rank);
  if (!failure_) check_presence(call.id, pending);
  if (!failure_ && pending.size() == participants(call.id).size()) complete(rank, call.id, pending);
}

void World::wait(int rank, CallId id) {
  Lock lock(mutex_);
  if (!pending_.contains(id)) return;
  failure_.rethrow_if_any();
  auto timeout = pending_.at(id).at(rank).timeout;
  auto deadline = Deadline::after(timeout);
  while (pending_.contains(id)) {
    failure_.rethrow_if_any();
    if (deadline.passed()) {
      const auto& pending = pending_.at(id);
      std::vector<diagnose::PeerStatus> peers;
      for (int one : participants(id)) peers.push_back(status_of(one, id, pending));
      fail(FailureKind::timeout,
           diagnose::overdue_sentence(pending.begin()->second, peers, timeout, names_));
      continue;
    }
    changed_.wait_for(lock.native(), std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
}

bool World::done(CallId id) {
  Lock lock(mutex_);
  return failure_ || !pending_.contains(id);
}

void World::abort(int rank, std::string_view reason) {
  Lock lock(mutex_);
  if (!failure_) fail(FailureKind::aborted, diagnose::aborted_sentence(rank, reason, names_));
}

std::vector<int> World::participants(CallId id) const {
  if (!id.channel.is_collective()) return {id.channel.source, id.channel.destination};
  return all_ranks(size_);
}

void World::check_agreement(const PendingOperation& pending, int rank) {
  const auto& mine = pending.at(rank);
  for (const auto& [other, call] : pending) {
    if (other == rank) continue;
    bool agree = same_call(mine, call);
    if (agree && mine.collective == Collective::all_to_all) {
      agree = counts_agree(mine, rank, call, other) && counts_agree(call, other, mine, rank);
    }
    if (agree) continue;
    return fail(FailureKind::mismatch,
                diagnose::mismatch_sentence(mine, rank, call.record(), other, names_));
  }
}

void World::check_presence(CallId id, const PendingOperation& pending) {
  for (int rank : participants(id)) {
    if (!members_[rank].left || pending.contains(rank)) continue;
    diagnose::LostRank lost{.rank = rank,
                            .size = size_,
                            .by_exception = members_[rank].by_exception,
                            .status = status_of(rank, id, pending),
                            .call = pending.begin()->second};
    for (const auto& [waiting, call] : pending) lost.waiting.push_back(waiting);
    return fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, names_));
  }
}

void World::complete(int rank, CallId id, PendingOperation& pending) {
  try {
    if (!id.channel.is_collective()) {
      perform(of_memory(pending.at(id.channel.source)),
              of_memory(pending.at(id.channel.destination)));
    } else {
      std::vector<PostedCall> calls;
      for (auto& [poster, call] : pending) calls.push_back(of_memory(call));
      perform(calls);
    }
  } catch (const std::exception& error) {
    return fail(FailureKind::aborted,
                diagnose::execution_sentence(rank, pending.at(rank), error.what(), names_));
  }
  pending_.erase(id);
  changed_.notify_all();
}

void World::fail(FailureKind kind, const std::string& text) {
  failure_.set(diagnose::error_of(kind, text));
  for (auto& [id, pending] : pending_) pending.clear();
  changed_.notify_all();
}

diagnose::PeerStatus World::status_of(int rank, CallId id, const PendingOperation& pending) const {
  const auto& last = members_[rank].last_call;
  return {
      .rank = rank,
      .has_called = pending.contains(rank),
      .last = last,
      .last_is_of_channel = last && channel_of(last->collective, last->root, rank) == id.channel};
}

// Joining and leaving.

std::shared_ptr<World> World::child(int rank, std::span<const int> ranks, std::string_view name) {
  Lock lock(mutex_);
  auto entry = children_.find(name);
  if (entry == children_.end()) {
    Child fresh{std::make_shared<World>(static_cast<int>(ranks.size()),
                                        names_.part(ranks, std::string(name))),
                {ranks.begin(), ranks.end()},
                std::vector<bool>(ranks.size())};
    entry = children_.emplace(std::string(name), std::move(fresh)).first;
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      if (!members_[ranks[place]].left) continue;
      entry->second.taken[place] = true;
      entry->second.world->leave(static_cast<int>(place), members_[ranks[place]].by_exception);
    }
  }
  auto& child = entry->second;
  child.taken[std::ranges::find(child.ranks, rank) - child.ranks.begin()] = true;
  auto world = child.world;
  if (std::ranges::all_of(child.taken, [](bool taken) { return taken; })) children_.erase(entry);
  return world;
}

at::Tensor World::node_shared(int rank, const std::function<at::Tensor()>& make) {
  Lock lock(mutex_);
  auto number = ++members_[rank].node_shared;
  auto& shared = node_shared_[number];
  if (!shared.tensor.defined()) shared.tensor = make();
  auto mine = shared.tensor.detach();
  if (shared.tensor.requires_grad()) mine.requires_grad_();
  if (++shared.taken == size_) node_shared_.erase(number);
  return mine;
}

void World::leave(int rank, bool by_exception) {
  Lock lock(mutex_);
  members_[rank].left = true;
  members_[rank].by_exception = by_exception;
  for (auto& [name, child] : children_) {
    auto place = std::ranges::find(child.ranks, rank) - child.ranks.begin();
    if (place == std::ssize(child.ranks) || child.taken[place]) continue;
    child.taken[place] = true;
    child.world->leave(static_cast<int>(place), by_exception);
  }
  for (auto entry = pending_.begin(); !failure_ && entry != pending_.end(); ++entry) {
    auto id = entry->first;
    auto [source, destination] = id.channel;
    if (!id.channel.is_collective() && source != rank && destination != rank) continue;
    check_presence(id, entry->second);
    if (failure_) break;
  }
}

LocalBackend::LocalBackend(std::shared_ptr<World> world, int rank, int size)
    : Backend(rank, size), world_(std::move(world)) {}

LocalBackend::~LocalBackend() { world_->leave(rank(), grace_.is_by_exception()); }

at::Tensor LocalBackend::empty_node_shared(at::IntArrayRef sizes, const at::TensorOptions& options,
                                           const Agree& agree) {
  (void)host_bytes("empty_node_shared", sizes, options);
  auto tag = node_shared_tag(sizes, options);
  agree({{.collective = Collective::barrier, .tag = tag}});  // checks that all ranks pass the same
  return world_->node_shared(rank(), [&] { return at::empty(sizes, options); });
}

std::shared_ptr<Backend> LocalBackend::subset(std::span<const int> ranks, std::string_view name) {
  auto world = world_->child(rank(), ranks, name);
  auto place = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  return sys::make_shared_of_process<LocalBackend>(std::move(world), place,
                                                   static_cast<int>(ranks.size()));
}

}  // namespace lockstep::local

namespace lockstep {
namespace {

// The error to report from several threads: the first by time. A thread's own error takes
// precedence over the PeerLost that it caused on other ranks, even if that was caught earlier.
class FirstError {
 public:
  void take(std::exception_ptr error) {
    bool own = !is_peer_lost(error);
    std::lock_guard lock(mutex_);
    if (error_ && (own_ || !own)) return;
    error_ = std::move(error);
    own_ = own;
  }
  void rethrow_if_any() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static bool is_peer_lost(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const PeerLost&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  std::mutex mutex_;
  std::exception_ptr error_;
  bool own_ = false;
};

}  // namespace

std::vector<Group> local_groups(int size, Duration timeout) {
  if (size < 1)
    throw InvalidArgument(formatted("local_groups: expected at least 1 rank, found {}", size));
  if (size == 1) return {Group()};
  auto world = std::make_shared<local::World>(size, GroupNames());
  std::vector<Group> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.emplace_back(sys::make_shared_of_process<local::LocalBackend>(world, rank, size),
                        "world", timeout);
  }
  return groups;
}

void run_as_threads(int size, const std::function<void(Group)>& rank, Duration timeout) {
  auto groups = local_groups(size, timeout);
  // The first call in a forked process rebuilds LibTorch's pool, which threads must not do
  // concurrently.
  at::set_num_threads(at::get_num_threads());
  FirstError first;
  {
    std::vector<std::jthread> threads;
    for (auto& group : groups) {
      // The thread holds the only handle of its rank, so that the other ranks notice its end.
      threads.emplace_back([&rank, &first, mine = std::exchange(group, Group())]() mutable {
        at::set_num_threads(1);
        try {
          rank(mine);
        } catch (...) {
          first.take(std::current_exception());
        }
        mine = Group();
      });
    }
  }
  first.rethrow_if_any();
}

}  // namespace lockstep
