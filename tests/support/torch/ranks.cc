#include "support/torch/ranks.h"

#include <lockstep/comm/local.h>
#include <lockstep/store/file_store.h>
#include <lockstep/store/prefix_store.h>

#include "base/environment.h"
#include "comm/api/group_state.h"
#include "comm/backends/mpi/progress_thread.h"
#include "comm/init/backends.h"
#include "comm/init/run_store.h"
#include "rank_env/rank_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lockstep::test {

std::string_view name_of(BackendKind backend) {
  switch (backend) {
    case BackendKind::local:
      return "local";
    case BackendKind::shm:
      return "shm";
    case BackendKind::hierarchical:
      return "hierarchical";
    case BackendKind::gloo:
      return "gloo";
    case BackendKind::mpi:
      return "mpi";
  }
  return "?";
}

namespace {

// Returns this process's place under mpirun; a single rank without mpirun.
const rank_env::RankInfo& place_under_mpirun() {
  static const rank_env::RankInfo place = rank_env::detect_mpirun().value_or(rank_env::RankInfo());
  return place;
}

// Returns a store for all tests. Rank 0 serves it until its process ends.
std::shared_ptr<Store> store_of_mpirun() {
  static const auto store =
      open_run_store(place_under_mpirun(), Deadline::after(std::chrono::seconds(60)));
  return store;
}

}  // namespace

// Returns hosts that are uneven and not in order, as far as a few ranks allow.
std::vector<std::string> pretended_hosts(int size) {
  switch (size) {
    case 3:
      return {"a", "a", "b"};
    case 4:
      return {"a", "b", "a", "b"};
    case 5:
      return {"a", "b", "b", "a", "c"};
    default:
      break;
  }
  std::vector<std::string> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back("host " + std::to_string(rank));
  return hosts;
}

bool is_under_mpirun() { return place_under_mpirun().size > 1; }

std::vector<BackendKind> backends() {
  std::vector<BackendKind> result;
  auto names = backend_names();
  auto add = [&](BackendKind backend) {
    if (std::ranges::find(names, name_of(backend)) != names.end()) result.push_back(backend);
  };
  if (is_under_mpirun()) {
    add(BackendKind::mpi);
    add(BackendKind::hierarchical);
    return result;
  }
  result.push_back(BackendKind::local);
  for (auto backend : {BackendKind::shm, BackendKind::hierarchical, BackendKind::gloo})
    add(backend);
  return result;
}

bool has(BackendKind backend) {
  auto all = backends();
  return std::ranges::find(all, backend) != all.end();
}

RankRendezvous::RankRendezvous(BackendKind backend, int size, Duration timeout)
    : backend_(backend), size_(size), timeout_(timeout) {
  static int places = 0;
  number_ = ++places;
}

std::shared_ptr<Store> RankRendezvous::store() const {
  if (!is_under_mpirun()) return std::make_shared<FileStore>(folder_.path());
  return std::make_shared<PrefixStore>("place " + std::to_string(number_) + "/", store_of_mpirun());
}

Group RankRendezvous::join(int rank) const {
  if (size_ == 1) return {};
  BackendOptions options{.timeout = timeout_,
                         .join_timeout = std::chrono::seconds(20),
                         .arena_bytes = 64 << 20,
                         .hosts = pretended_hosts(size_)};
  std::string name(name_of(backend_));
  if (backend_ == BackendKind::hierarchical) name += is_under_mpirun() ? ":mpi" : ":gloo";
  auto world = make_backend(name, store(), rank, size_, options);
  return recorded_world(std::move(world), timeout_);
}

void run_group(BackendKind backend, int size, const GroupBody& body, Duration timeout) {
  SCOPED_TRACE(std::to_string(size) + " ranks on " + std::string(name_of(backend)));
  if (backend == BackendKind::local) {
    try {
      run_as_threads(size, body, timeout);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    return;
  }
  RankRendezvous place(backend, size, timeout);
  if (is_under_mpirun()) {
    try {
      mpi::ProgressThread::
          open();  // MPI_Init() runs in all processes, also in those without a rank here
      int rank = place_under_mpirun().rank;
      if (rank < size) body(place.join(rank));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    return;
  }
  expect_ranks(size, [&](int rank) { body(place.join(rank)); });
}

}  // namespace lockstep::test
