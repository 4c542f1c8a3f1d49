#include "comm/engines/shm/loans.h"

#include <lockstep/base/error.h>

#include "base/format.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace lockstep::shm {
namespace {

// In the lender's arena.
struct Record {
  std::uint64_t location = 0;  // Location::word(); private memory is of the same process
  std::uint64_t bytes = 0;
};

// Lets go of a loan. A forked child has a copy of what its parent has borrowed.
struct Hold {
  Hold(std::byte* held, std::shared_ptr<const void> of_record, std::shared_ptr<const void> of_data)
      : record(held), record_mapping(std::move(of_record)), data_mapping(std::move(of_data)) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    if (process.is_copy_of_parent())
      sys::leave_undestroyed(std::move(record_mapping), std::move(data_mapping));
    else
      Arena::release_hold(record);
  }

  std::byte* record;
  std::shared_ptr<const void> record_mapping, data_mapping;
  sys::OwnProcess process;
};

int copy_of(const sys::FileDescriptor& file) {
  return file ? fcntl(file.get(), F_DUPFD_CLOEXEC, 0) : -1;
}

}  // namespace

Loan::Loan(const Peers& peers, int borrower, std::byte* record, std::shared_ptr<const void> memory)
    : arena_(peers.arena()),
      record_(record),
      memory_(std::move(memory)),
      mapping_(peers.mapping(borrower)),
      borrower_(&peers.control(borrower)) {
  if (peers.process(borrower) == 0) return;  // it ends with this one
  const Peer& peer = peers.peer(borrower);
  process_.reset(copy_of(peer.process));
  if (!process_) socket_.reset(copy_of(peer.socket));
}

bool Loan::borrower_has_ended() const {
  pollfd entry{process_.get(), POLLIN, 0};
  if (!process_) entry = {socket_.get(), POLLRDHUP, 0};
  return entry.fd >= 0 && poll(&entry, 1, 0) > 0;
}

bool Loan::is_over() {
  // In this order: a borrower that has left takes nothing more.
  const bool has_left = borrower_->left.load(std::memory_order_seq_cst) == Control::gone;
  if (has_left) Arena::expect_nobody(record_);
  if (!Arena::has_one_holder(record_) && !borrower_has_ended()) return false;
  Arena::forget_holders(record_);
  return true;
}

std::uint64_t Loans::lend(const std::byte* data, std::size_t bytes, int borrower,
                          std::shared_ptr<const void> memory) {
  sweep();
  if (!can_lend(data, bytes, borrower)) return 0;
  const Location location =
      peers_.process(borrower) == 0 ? peers_.locate_private(data) : peers_.locate(data, bytes);
  std::byte* record = peers_.arena()->try_allocate_held(sizeof(Record), 1, 1);
  if (record == nullptr) return 0;
  new (record) Record{location.word(), bytes};
  std::lock_guard lock(mutex_);
  loans_.emplace_back(peers_, borrower, record, std::move(memory));
  return static_cast<std::uint64_t>(record - peers_.arena()->data());
}

Borrowed Loans::borrow(std::uint64_t handle, int lender, std::size_t bytes) {
  std::byte* record = peers_.base(lender) + handle;
  Arena::take(record);
  const Record lent = *std::launder(reinterpret_cast<const Record*>(record));
  const Location location = Location::of(lent.location);
  auto mapped = location.is_private ? nullptr : mapping(lender);
  auto hold = std::make_shared<Hold>(record, peers_.mapping(lender), mapped);
  if (lent.bytes != bytes)
    throw Mismatch(formatted("a tensor by handle: expected {} bytes, found {}", bytes, lent.bytes));
  if (location.is_private) return {peers_.address(location), std::move(hold)};
  if (mapped) return {mapped->data() + location.offset, std::move(hold)};
  return {peers_.address(location), std::move(hold), /*may_stay=*/false};
}

void Loans::give_up(std::uint64_t handle) { Arena::expect_nobody(peers_.arena()->data() + handle); }

void Loans::sweep() {
  std::vector<Loan> over;  // its memory goes after the lock
  std::lock_guard lock(mutex_);
  const auto first =
      std::partition(loans_.begin(), loans_.end(), [](Loan& loan) { return !loan.is_over(); });
  std::move(first, loans_.end(), std::back_inserter(over));
  loans_.erase(first, loans_.end());
}

std::size_t Loans::count() {
  sweep();
  std::lock_guard lock(mutex_);
  return loans_.size();
}

std::vector<Loan> Loans::take_all() {
  std::lock_guard lock(mutex_);
  return std::exchange(loans_, {});
}

std::shared_ptr<const sys::SharedMemory> Loans::mapping(int lender) {
  std::lock_guard lock(mutex_);
  const auto [entry, is_new] = mappings_.emplace(lender, nullptr);
  if (is_new) {
    const auto& memory = *peers_.peer(lender).memory;
    entry->second = map_(memory.file(), memory.bytes());
  }
  return entry->second;
}

}  // namespace lockstep::shm
