#include "comm/backends/shm/endpoint.h"

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/call/record.h"
#include "comm/kernels/combine.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

namespace lockstep::shm {
namespace {

std::shared_ptr<Arena> make_arena(const EndpointOptions& options, int rank, int size) {
  check(size <= kernels::max_ranks, "shared memory: expected at most {} ranks, found {}",
        kernels::max_ranks, size);
  check(rank >= 0 && rank < size, "shared memory: expected a rank below {}, found {}", size, rank);
  return sys::make_shared_of_process<Arena>(options.arena_bytes, rank);
}

std::string prefix_of_round(Store& store, int rank) {
  return formatted("shm/{}/", store.add(formatted("shm/round/{}", rank), 1));
}

}  // namespace

Endpoint::Endpoint(std::shared_ptr<Store> store, int rank, int size, EndpointOptions options)
    : store_(std::move(store)),
      options_(std::move(options)),
      names_("world", options_.world_ranks),
      arena_(make_arena(options_, rank, size)),
      prefix_(prefix_of_round(*store_, rank)),
      world_block_(rank == 0 ? make_block(size) : nullptr),
      exchanged_(exchange_arenas(*store_, prefix_, rank, size, arena_,
                                 world_block_ ? world_block_ - arena_->data() : 0,
                                 Deadline::after(options_.join_timeout))),
      liveness_(exchanged_.peers),
      progress_(std::make_unique<ProgressEngine>(exchanged_.peers)) {
  progress_->set_due_action([this] { reap(); });
  world_ = &add_group(names_, all_ranks(size), peers().base(0) + exchanged_.world_block);
  watcher_ = std::make_unique<Watcher>(
      peers(), [this](int peer) { on_peer_end(peer); },
      [this](int peer) { progress_->on_urge(peer); });
  progress_->start_helping();
}

Endpoint::~Endpoint() {
  if (process_.is_copy_of_parent()) {
    sys::leave_undestroyed(std::move(groups_), std::move(leaving_), std::move(given_up_),
                           std::move(used_keys_), std::move(own_blocks_), std::move(progress_),
                           std::move(watcher_));
    return;
  }
  watcher_.reset();
  progress_->stop_helping();
  liveness_.leave();
}

void Endpoint::on_peer_end(int rank) {
  if (liveness_.has_left(rank)) return;
  std::lock_guard lock(progress_->mutex());
  liveness_.note_end(rank);
  auto pid = peers().peer(rank).pid;
  auto process = pid > 0 ? std::to_string(pid) : std::string();
  for (auto& group : groups_) group->fail_by_end(rank, process);
}

// Making and leaving groups.
namespace {

// The value under a group's key is the offset of the group's block, or one of these marks and the
// reason why there is no block.
constexpr std::string_view refused_mark = "refused: ";
constexpr std::string_view lost_mark = "lost: ";

std::uint64_t offset_in(const std::string& key, const std::string& text) {
  if (text.starts_with(refused_mark)) throw BadInput(text.substr(refused_mark.size()));
  if (text.starts_with(lost_mark)) throw PeerLost(text.substr(lost_mark.size()));
  auto offset = parse_integer(text);
  check_input(offset && *offset > 0, "store key {}: expected an offset, found '{}'", key, text);
  return static_cast<std::uint64_t>(*offset);
}

}  // namespace

std::byte* Endpoint::make_block(int members, std::string key) {
  own_blocks_.reserve(own_blocks_.size() + 1);
  auto* block = arena_->allocate_zeroed(GroupBlock::bytes(members));
  own_blocks_.push_back({block, members, std::move(key)});
  return block;
}

GroupMember& Endpoint::add_group(const GroupNames& names, std::vector<int> members,
                                 std::byte* block) {
  GroupBlock memory(block, static_cast<int>(members.size()));
  auto me = std::ranges::find(members, peers().rank()) - members.begin();
  try {
    auto group =
        std::make_shared<GroupMember>(*progress_, peers(), liveness_, names, members, block);
    std::lock_guard lock(progress_->mutex());
    check_alive(names, members);
    groups_.push_back(std::move(group));
    return *groups_.back();
  } catch (...) {
    // The other members may have made the group already, and must not wait for this rank.
    memory.left(static_cast<int>(me)).store(GroupBlock::gone, std::memory_order_seq_cst);
    peers().ring(members);
    throw;
  }
}

void Endpoint::check_alive(const GroupNames& names, std::span<const int> members) const {
  for (int member : members) {
    if (!liveness_.has_ended(member)) continue;
    throw PeerLost(formatted("making group {}: rank {} of the world has ended", names.name(),
                             names_.world_rank(member)));
  }
}

GroupMember& Endpoint::make_group(const std::string& name, std::vector<int> members) {
  auto key = formatted("{}group/{}", prefix_, name);
  const GroupNames names = names_.part(members, name);
  int owner = members.front();
  if (owner != peers().rank()) {
    auto* block = peers().base(owner) + find_block(key, names, members);
    return add_group(names, std::move(members), block);
  }
  reap();
  erase_used_keys();
  auto* block = make_own_block(key, names, members);
  store_->set(key, std::to_string(block - arena_->data()));
  return add_group(names, std::move(members), block);
}

std::byte* Endpoint::make_own_block(const std::string& key, const GroupNames& names,
                                    std::span<const int> members) {
  try {
    std::lock_guard lock(progress_->mutex());
    check_alive(names, members);
    return make_block(static_cast<int>(members.size()), key);
  } catch (const PeerLost& error) {
    refuse(key, std::string(lost_mark) + error.what());
    throw;
  } catch (const std::exception& error) {
    refuse(key,
           formatted("{}making group {}: its first member, rank {} of the world, could not: {}",
                     refused_mark, names.name(), names_.world_rank(peers().rank()), error.what()));
    throw;
  }
}

void Endpoint::refuse(const std::string& key, const std::string& why) noexcept {
  try {
    store_->set(key, why);
  } catch (const std::exception& error) {
    log::debug("publishing that a group cannot be made: {}", error.what());
  }
}

void Endpoint::erase_used_keys() {
  std::vector<std::string> used;
  {
    std::lock_guard lock(progress_->mutex());
    used.swap(used_keys_);
  }
  for (const auto& key : used) store_->erase(key);
}

std::uint64_t Endpoint::find_block(const std::string& key, const GroupNames& names,
                                   std::span<const int> members) {
  constexpr auto look_again = std::chrono::milliseconds(200);
  auto deadline = Deadline::after(options_.timeout);
  for (;;) {
    {
      std::lock_guard lock(progress_->mutex());
      check_alive(names, members);
    }
    try {
      return offset_in(key, store_->get(key, Deadline::after(look_again).or_sooner(deadline)));
    } catch (const Timeout&) {
      // The member may have made the block before it left.
      bool is_gone = liveness_.has_left(members.front()) && !store_->try_get(key);
      if (is_gone)
        throw PeerLost(formatted("making group {}: its first member, rank {} of the world, left",
                                 names.name(), names.world_rank(0)));
      if (!deadline.passed()) continue;
      throw Timeout(
          formatted("making group {}: rank {} of the world, its first member, has not "
                    "called within {}",
                    names.name(), names.world_rank(0), format_duration(options_.timeout)));
    }
  }
}

void Endpoint::leave(GroupMember& group, bool by_exception) {
  if (process_.is_copy_of_parent()) return;
  std::shared_ptr<GroupMember> kept;  // another thread may reap the group from here on
  {
    std::lock_guard lock(progress_->mutex());
    kept = *std::ranges::find(groups_, &group, &std::shared_ptr<GroupMember>::get);
    kept->leave(by_exception);
    leaving_.push_back(kept.get());
    progress_->set_due(leaving_.size());
  }
  peers().ring(kept->members());
  kept.reset();
  while (progress_->try_progress(ProgressScope::anything)) continue;
  reap();
}

void Endpoint::give_up(GroupMember& group, std::byte* held) {
  Arena::release_hold(held);
  std::lock_guard lock(progress_->mutex());
  given_up_.push_back(
      {*std::ranges::find(groups_, &group, &std::shared_ptr<GroupMember>::get), held});
}

void Endpoint::reap() {
  std::vector<std::shared_ptr<GroupMember>> ended;  // destroyed after unlocking, with tensors
  std::lock_guard lock(progress_->mutex());
  std::erase_if(given_up_, [&](GivenUp& block) {
    if (!block.group->is_deserted()) return false;
    Arena::expect_nobody(block.held);
    ended.push_back(std::move(block.group));
    return true;
  });
  std::erase_if(leaving_, [&](GroupMember* group) {
    if (!group->is_settled() && !group->has_failed()) return false;
    progress_->forget(group->channels());
    if (!group->is_settled()) return true;  // peers may still write into its buffers
    group->go();
    auto place = std::ranges::find(groups_, group, &std::shared_ptr<GroupMember>::get);
    ended.push_back(std::move(*place));
    groups_.erase(place);
    return true;
  });
  progress_->set_due(leaving_.size());
  std::erase_if(own_blocks_, [this](OwnBlock& own) {
    if (!GroupBlock(own.data, own.members).everyone_is_gone()) return false;
    arena_->free(own.data);
    if (!own.key.empty()) used_keys_.push_back(std::move(own.key));
    return true;
  });
}

}  // namespace lockstep::shm
