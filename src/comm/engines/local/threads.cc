#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>

#include "base/format.h"
#include "comm/engines/local/backend.h"
#include "sys/own_process.h"

#include <ATen/Parallel.h>

#include <exception>
#include <mutex>
#include <thread>

namespace lockstep {
namespace {

// The error to report from several threads: the first by time. A thread's own error takes
// precedence over the PeerLost that its end caused on other ranks, which may be caught sooner.
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
      // Only the thread holds its rank's group, so that the other ranks notice its end.
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
