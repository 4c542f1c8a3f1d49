// One injected failure: ranks make collectives in a loop, one of them misbehaves at a random
// moment, and the errors of the others are recorded with their times.
#pragma once

#include "support/torch/ranks.h"

#include <lockstep/base/deadline.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

enum class Misdeed {
  kill,       // SIGKILL at any instruction
  stop,       // SIGSTOP at any instruction
  loop,       // loops forever between two calls
  exit,       // ends its process without leaving the group
  exception,  // leaves through an exception
  operation,  // this and the following: makes one call that differs from the other ranks'
  reduction,
  dtype,
  count,
  root,
  tag,
  order,
  ahead,
};

[[nodiscard]] std::string name_of(Misdeed misdeed);
[[nodiscard]] const std::vector<Misdeed>& all_misdeeds();

// Returns the backends whose ranks are processes that a test can fork: shm, and gloo if this build
// has it.
[[nodiscard]] std::vector<BackendKind> backends_of_processes();

// A backend: one of backends_of_processes(), hierarchical over Gloo, or mpi.
struct Target {
  BackendKind backend = BackendKind::shm;
  std::string mpi = {};  // MPI implementation whose mpirun starts the ranks: "openmpi", "mpich"

  [[nodiscard]] std::string name() const;  // "shm", "gloo", "hierarchical", "openmpi", "mpich"
  friend std::ostream& operator<<(std::ostream& out, const Target& target);
};
// Returns the targets that this build supports and whose requirements this host meets.
[[nodiscard]] std::vector<Target> injection_targets();

struct Injection {
  Target target = {};
  Misdeed misdeed = Misdeed::kill;
  std::uint64_t seed = 0;
  Duration deadline = std::chrono::seconds(1);  // deadline of a wait

  // Derived from the seed.
  [[nodiscard]] int ranks() const;   // 2 to 5
  [[nodiscard]] int victim() const;  // the rank that misbehaves
  [[nodiscard]] int step() const;    // the step in which it misbehaves
  // Returns true if the victim's process ends.
  [[nodiscard]] bool ends_a_process() const {
    return misdeed == Misdeed::kill || misdeed == Misdeed::exit;
  }
};

struct Outcome {
  bool named_rightly = true;       // every survivor got the right error, with the right rank
  std::string problem;             // what was wrong, for the first survivor
  std::vector<double> seconds;     // from the failure to the error, per survivor
  std::vector<std::string> texts;  // the message that each survivor got
};

class MpirunWorlds;

// A running injection. Several may run at once, but only one in a world that mpirun started.
class RunningInjection {
 public:
  RunningInjection(const Injection& injection, MpirunWorlds& worlds);
  ~RunningInjection();
  RunningInjection(RunningInjection&&) noexcept;
  // Blocks until the survivors have ended.
  [[nodiscard]] Outcome finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] inline Outcome inject(const Injection& injection, MpirunWorlds& worlds) {
  return RunningInjection(injection, worlds).finish();
}

}  // namespace lockstep::test
