#include "comm/engines/shm/shared_group.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include "base/visible.h"
#include "comm/diagnose/report.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace lockstep::shm {

SharedGroup::SharedGroup(const Peers& peers, const Presence& presence, GroupNames names,
                         std::vector<int> members, std::byte* block)
    : peers_(peers),
      presence_(presence),
      names_(std::move(names)),
      members_(std::move(members)),
      block_(block, size()),
      rank_(static_cast<int>(std::ranges::find(members_, peers.rank()) - members_.begin())) {}

bool SharedGroup::has_departed(int number) const {
  return block_.left(number).load(std::memory_order_seq_cst) != GroupBlock::present ||
         presence_.has_left(world_rank(number));
}

bool SharedGroup::has_left_by_exception(int number) const {
  return (block_.left(number).load(std::memory_order_relaxed) & GroupBlock::by_exception) != 0;
}

bool SharedGroup::executes(int number, std::uint64_t word) const {
  bool found = false;
  visit_marks(peers_, world_rank(number), [&](std::uint64_t mark) { found |= mark == word; });
  return found;
}

void SharedGroup::fail(FailureKind kind, std::string_view text) const {
  SharedFailure& failure = block_.failure();
  std::uint32_t expected = SharedFailure::alive;
  if (failure.state.compare_exchange_strong(expected, SharedFailure::being_written,
                                            std::memory_order_acq_rel)) {
    failure.kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
    failure.text.store(shortened(text, failure.text.capacity));
    failure.state.store(SharedFailure::written, std::memory_order_seq_cst);
  }
  peers_.ring(members_);
}

void SharedGroup::throw_failure(std::string_view more) const {
  const SharedFailure& failure = block_.failure();
  // The rank that began to write it may be stopped or dead; its text is then not worth a wait.
  auto patience = Deadline::after(std::chrono::milliseconds(200));
  while (failure.state.load(std::memory_order_acquire) != SharedFailure::written) {
    if (patience.passed()) throw Aborted(diagnose::untold_sentence(names_) + std::string(more));
    std::this_thread::yield();
  }
  std::rethrow_exception(
      diagnose::error_of(static_cast<FailureKind>(failure.kind.load(std::memory_order_relaxed)),
                         failure.text.load() + std::string(more)));
}

}  // namespace lockstep::shm
