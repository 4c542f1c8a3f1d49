// Ranks for tests, on whichever engine:
//
//   test::run_group(test::Engine::shm, 3, [](Group group) { ... });     // every rank must succeed
//
// Engine::local runs ranks as threads of the test program; shm and gloo fork them from it (see
// processes.h), which is safe because it never runs a parallel region with two threads. EXPECTs
// work in both.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/store/store.h>

#include "support/processes.h"
#include "support/temporary_folder.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::test {

enum class Engine { local, shm, gloo };

[[nodiscard]] std::string_view name_of(Engine engine);
// The engines of this build: gloo only where its headers were found.
[[nodiscard]] std::vector<Engine> engines();

using GroupBody = std::function<void(Group)>;

// Runs body in `size` ranks. An exception or a failed EXPECT of any of them is a failure of the
// test.
void run_group(Engine engine, int size, const GroupBody& body,
               Duration timeout = std::chrono::seconds(20));

// Where forked ranks meet, for tests that start and end them by hand: made by the parent, used in
// the ranks.
class MeetingPlace {
 public:
  MeetingPlace(Engine engine, int size, Duration timeout = std::chrono::seconds(20));
  // In a rank: joins the others.
  [[nodiscard]] Group join(int rank) const;
  // A client of the place's store, for test code's own messages.
  [[nodiscard]] std::shared_ptr<Store> store() const;

 private:
  Engine engine_;
  int size_;
  Duration timeout_;
  TemporaryFolder folder_;
};

}  // namespace lockstep::test
