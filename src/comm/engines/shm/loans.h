// Loans: memory of this rank that a peer reads where it lies until it lets go of it, and the other
// end: memory of peers that this process reads.
//
// A loan is known by its handle, the place of its record in the lender's arena (a held block,
// arena.h). The lender keeps the memory until the borrower has let go of it, has left without
// taking it, or its process has ended; it finds that out at a later call. Nobody waits for anybody:
// a borrower that keeps the memory keeps it, also after both have left their groups.
//
// Borrowed memory is mapped a second time, for reading alone: a write ends the process instead of
// changing a peer's values, and children that are forked do not have it, as they have not this
// process's own tensors (absent_in_children.h).
//
// Any thread.
#pragma once

#include "comm/engines/shm/peers.h"
#include "sys/file_descriptor.h"
#include "sys/own_process.h"
#include "sys/shared_memory.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::shm {

// One loan as the lender knows it. Its end gives the memory back.
class Loan {
 public:
  Loan(const Peers& peers, int borrower, std::byte* record, std::shared_ptr<const void> memory);

  // Nobody reads the memory any more, nor will. After true the record is the arena's again.
  [[nodiscard]] bool is_over();

 private:
  [[nodiscard]] bool borrower_has_ended() const;

  std::shared_ptr<Arena> arena_;
  std::byte* record_;
  std::shared_ptr<const void> memory_;
  std::shared_ptr<const void> mapping_;   // of the borrower's arena
  const Control* borrower_;               // in it
  sys::FileDescriptor process_, socket_;  // one of them, which says that its process has ended
};

// What a process has borrowed. The last copy of `hold` lets go of it.
struct Borrowed {
  const std::byte* data = nullptr;
  std::shared_ptr<const void> hold;
  bool may_stay = true;  // false: to be copied at once, since it could not be mapped for longer
};

class Loans {
 public:
  // Maps a file of so many bytes for reading; null when there is no room for it.
  using Map = std::function<std::shared_ptr<const sys::SharedMemory>(int file, std::size_t bytes)>;

  Loans(const Peers& peers, Map map) : peers_(peers), map_(std::move(map)) {}
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  // Whether that rank (of the world) can read the bytes where they lie.
  [[nodiscard]] bool can_lend(const std::byte* data, std::size_t bytes, int borrower) const {
    return peers_.process(borrower) == 0 || peers_.arena()->contains(data, bytes);
  }
  // `memory` keeps the bytes as they are. 0: that rank cannot read them, or the arena has no room
  // for a record.
  [[nodiscard]] std::uint64_t lend(const std::byte* data, std::size_t bytes, int borrower,
                                   std::shared_ptr<const void> memory);
  // Once for each handle. Mismatch when the loan is not of so many bytes.
  [[nodiscard]] Borrowed borrow(std::uint64_t handle, int lender, std::size_t bytes);
  // Of a handle that the borrower was never told.
  void give_up(std::uint64_t handle);

  // Frees the memory of loans that are over.
  void sweep();
  // How many are not over, as far as is known.
  [[nodiscard]] std::size_t count();
  [[nodiscard]] std::vector<Loan> take_all();

 private:
  [[nodiscard]] std::shared_ptr<const sys::SharedMemory> mapping(int lender);

  const Peers& peers_;
  const Map map_;
  std::mutex mutex_;
  std::vector<Loan> loans_;
  std::map<int, std::shared_ptr<const sys::SharedMemory>> mappings_;  // by lender
};

}  // namespace lockstep::shm
