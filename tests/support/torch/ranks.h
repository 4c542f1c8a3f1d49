// Ranks for tests, with any backend:
//
//   test::run_group(test::BackendKind::shm, 3, [](Group group) { ... });     // every rank must
//   succeed
//
// BackendKind::local runs ranks as threads of the test program. The backends shm, gloo and
// hierarchical fork ranks from it (see processes.h), which is safe because the test program never
// runs a parallel region with two threads. If mpirun started the program, its processes are the
// ranks of mpi and hierarchical: all of them run the same tests in the same order, and processes
// without a rank in a test skip it. EXPECTs work everywhere. Hierarchical groups pretend that their
// ranks are on several hosts.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/store/store.h>

#include "support/processes.h"
#include "support/temporary_folder.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

enum class BackendKind { local, shm, hierarchical, gloo, mpi };

[[nodiscard]] std::string_view name_of(BackendKind backend);
// Returns the backends of this build; gloo only if its headers were found. Under mpirun, returns
// the backends over MPI.
[[nodiscard]] std::vector<BackendKind> backends();
[[nodiscard]] bool has(BackendKind backend);
// Returns true if mpirun started this program with at least two processes.
[[nodiscard]] bool is_under_mpirun();

using GroupBody = std::function<void(Group)>;

// Runs body in `size` ranks. An exception or a failed EXPECT of any rank fails the test.
void run_group(BackendKind backend, int size, const GroupBody& body,
               Duration timeout = std::chrono::seconds(20));

// Returns the pretended host of each rank of a hierarchical group.
[[nodiscard]] std::vector<std::string> pretended_hosts(int size);

// Rendezvous for ranks that are processes, in tests that start and end them by hand: created by the
// parent, used in the ranks.
class RankRendezvous {
 public:
  RankRendezvous(BackendKind backend, int size, Duration timeout = std::chrono::seconds(20));
  // Joins the other ranks; called in a rank.
  [[nodiscard]] Group join(int rank) const;
  // Returns a client of the rendezvous store, for the test's own messages.
  [[nodiscard]] std::shared_ptr<Store> store() const;

 private:
  BackendKind backend_;
  int size_;
  Duration timeout_;
  TemporaryFolder folder_;  // for forked ranks
  int number_ = 0;          // under mpirun: distinguishes the rendezvous of one run
};

}  // namespace lockstep::test
