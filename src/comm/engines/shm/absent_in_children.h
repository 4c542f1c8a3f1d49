// Memory of this process that forked children do not have: a child would share it with its parent,
// and each would see what the other writes. Nothing else comes to lie at its addresses in a child,
// and touching it ends the child by SIGSEGV, as touching memory that an RDMA device uses does
// (ibv_fork_init); it says why on standard error unless the program handles SIGSEGV itself.
#pragma once

#include "sys/own_process.h"

#include <atomic>
#include <cstddef>

namespace lockstep::shm {

// One range, which the kernel does not give to children (sys::SharedMemory::keep_from_children()),
// for as long as the object lives. Any thread; in a child it changes nothing.
class AbsentInChildren {
 public:
  AbsentInChildren(std::byte* begin, std::size_t bytes);
  ~AbsentInChildren();
  AbsentInChildren(const AbsentInChildren&) = delete;
  AbsentInChildren& operator=(const AbsentInChildren&) = delete;

 private:
  friend class AbsentRanges;
  // Entries are never destroyed, so that a look at them needs no lock.
  struct Entry {
    std::atomic<std::byte*> begin{nullptr};  // null: to be used again
    std::atomic<std::size_t> bytes{0};
    std::atomic<bool> is_taken{false};
    Entry* next = nullptr;
  };

  Entry* entry_;
  const sys::OwnProcess process_;
};

}  // namespace lockstep::shm
