// What `lockstep bench collectives` is told, and the rows that follow from it.
#pragma once

#include "apps/bench/collectives/row.h"

#include <string>
#include <vector>

namespace lockstep::apps {

struct CollectivesOptions {
  std::vector<std::string> peers = {"gloo", "mpi"};  // "none" for none
  // Empty: the rows that docs/performance.md lists. What is left empty beside a choice is
  // all_reduce, 1 KiB and 64 MiB, and 2 ranks.
  std::vector<std::string> ops = {};
  std::vector<std::string> sizes = {};
  std::vector<int> ranks = {};
  bool outsider = false;  // each chosen row also beside a busy process
  int rounds = 10;        // turns of every system in a row
  double turn = 0.1;      // seconds that a turn should take
  bool json = false;
  std::string python = {};  // empty: LOCKSTEP_PYTHON, else the source tree's .venv
};

// In the order in which they are measured: by number of ranks. BadInput for a word, a size or a
// number that cannot be meant, and for more memory than is free.
[[nodiscard]] std::vector<Row> rows_of(const CollectivesOptions& options);

}  // namespace lockstep::apps
