// Memory of this process that forked children do not have: a child would share it with its parent,
// and each would see the other's writes. In a child, no other mapping takes these addresses, and
// touching them ends the child by SIGSEGV, as touching memory of an RDMA device does
// (ibv_fork_init). The child prints the reason to standard error unless the program handles SIGSEGV
// itself.
#pragma once

#include "sys/own_process.h"

#include <atomic>
#include <cstddef>

namespace lockstep::shm {

// Excludes one range from children during the object's lifetime
// (sys::SharedMemory::keep_from_children()). Thread-safe; has no effect in a child.
class AbsentInChildren {
 public:
  AbsentInChildren(std::byte* begin, std::size_t bytes);
  ~AbsentInChildren();
  AbsentInChildren(const AbsentInChildren&) = delete;
  AbsentInChildren& operator=(const AbsentInChildren&) = delete;

 private:
  friend class AbsentRanges;
  // Entries are never destroyed, so that reading them needs no lock.
  struct Entry {
    std::atomic<std::byte*> begin{nullptr};  // null: free for reuse
    std::atomic<std::size_t> bytes{0};
    std::atomic<bool> is_taken{false};
    Entry* next = nullptr;
  };

  Entry* entry_;
  const sys::OwnProcess process_;
};

}  // namespace lockstep::shm
