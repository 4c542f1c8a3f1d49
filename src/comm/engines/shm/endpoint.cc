#include "comm/engines/shm/endpoint.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "comm/call/all_ranks.h"
#include "comm/kernels/combine.h"

#include <mutex>
#include <string>
#include <utility>

namespace lockstep::shm {
namespace {

std::shared_ptr<Arena> make_arena(const EndpointOptions& options, int rank, int size) {
  check(size <= kernels::max_ranks, "shared memory: expected at most {} ranks, found {}",
        kernels::max_ranks, size);
  check(rank >= 0 && rank < size, "shared memory: expected a rank below {}, found {}", size, rank);
  return sys::make_shared_of_process<Arena>(options.arena_bytes);
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
      handed_over_(hand_over(*store_, prefix_, rank, size, arena_,
                             world_block_ ? world_block_ - arena_->data() : 0,
                             Deadline::after(options_.join_timeout))),
      presence_(handed_over_.peers),
      progress_(std::make_unique<ProgressEngine>(handed_over_.peers)) {
  progress_->set_due_action([this] { reap(); });
  world_ = &add_group(names_, all_ranks(size), peers().base(0) + handed_over_.world_block);
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
  presence_.leave();
}

void Endpoint::on_peer_end(int rank) {
  if (presence_.has_left(rank)) return;
  std::lock_guard lock(progress_->mutex());
  presence_.note_end(rank);
  auto pid = peers().peer(rank).pid;
  auto process = pid > 0 ? std::to_string(pid) : std::string();
  for (auto& group : groups_) group->fail_by_end(rank, process);
}

}  // namespace lockstep::shm
