// Ranks for tests, on whichever engine:
//
//   test::run_group(test::Engine::shm, 3, [](Group group) { ... });     // every rank must succeed
//
// Engine::local runs ranks as threads of the test program; shm, gloo and hierarchical fork them
// from it (see processes.h), which is safe because it never runs a parallel region with two
// threads. Where mpirun started the program, its processes are the ranks of mpi and hierarchical:
// all of them run the same tests in the same order, and those that a test has no rank for pass it
// by. EXPECTs work everywhere. Hierarchical groups pretend that their ranks are on several hosts.
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

enum class Engine { local, shm, hierarchical, gloo, mpi };

[[nodiscard]] std::string_view name_of(Engine engine);
// The engines of this build: gloo only where its headers were found. Under mpirun: those over MPI.
[[nodiscard]] std::vector<Engine> engines();
[[nodiscard]] bool has(Engine engine);
// Whether mpirun started this program, with at least two processes.
[[nodiscard]] bool is_under_mpirun();

using GroupBody = std::function<void(Group)>;

// Runs body in `size` ranks. An exception or a failed EXPECT of any of them is a failure of the
// test.
void run_group(Engine engine, int size, const GroupBody& body,
               Duration timeout = std::chrono::seconds(20));

// On which of several hosts each rank of a hierarchical group is, as tests pretend.
[[nodiscard]] std::vector<std::string> pretended_hosts(int size);

// Where ranks that are processes meet, for tests that start and end them by hand: made by the
// parent, used in the ranks.
class RankRendezvous {
 public:
  RankRendezvous(Engine engine, int size, Duration timeout = std::chrono::seconds(20));
  // In a rank: joins the others.
  [[nodiscard]] Group join(int rank) const;
  // A client of the place's store, for test code's own messages.
  [[nodiscard]] std::shared_ptr<Store> store() const;

 private:
  Engine engine_;
  int size_;
  Duration timeout_;
  TemporaryFolder folder_;  // of forked ranks
  int number_ = 0;          // of this place, among those of the processes of an mpirun
};

}  // namespace lockstep::test
