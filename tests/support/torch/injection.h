// One injected failure: some ranks in a loop of collectives, one of which does something bad at a
// random moment, and what the others are told and when.
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
  kill,       // SIGKILL, at any instruction
  stop,       // SIGSTOP, at any instruction
  loop,       // computes for ever between two calls
  exit,       // ends its process without leaving
  exception,  // leaves through an exception
  operation,  // from here on, one call that the others do not make
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

// Those whose ranks are processes that a test can fork: shm, and gloo where this build has it.
[[nodiscard]] std::vector<Engine> engines_of_processes();

// Those, hierarchical over Gloo, and mpi.
struct Target {
  Engine engine = Engine::shm;
  std::string mpi = {};  // the implementation whose mpirun starts the ranks: "openmpi", "mpich"

  [[nodiscard]] std::string name() const;  // "shm", "gloo", "hierarchical", "openmpi", "mpich"
  friend std::ostream& operator<<(std::ostream& out, const Target& target);
};
// Those of this build for which this machine has what they need.
[[nodiscard]] std::vector<Target> injection_targets();

struct Injection {
  Target target = {};
  Misdeed misdeed = Misdeed::kill;
  std::uint64_t seed = 0;
  Duration deadline = std::chrono::seconds(1);  // of a wait

  // From the seed.
  [[nodiscard]] int ranks() const;   // 2-5
  [[nodiscard]] int victim() const;  // who does it
  [[nodiscard]] int step() const;    // when
  // Of the victim.
  [[nodiscard]] bool ends_a_process() const {
    return misdeed == Misdeed::kill || misdeed == Misdeed::exit;
  }
};

struct Outcome {
  bool named_rightly = true;       // by every survivor: the right error with the right rank in it
  std::string problem;             // what was wrong, for the first that was not
  std::vector<double> seconds;     // from the deed to the error, of every survivor
  std::vector<std::string> texts;  // what each of them was told
};

class MpirunWorlds;

// Starts it; several may run at once, but one in a world that mpirun started.
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
