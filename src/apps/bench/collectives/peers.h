// The systems that stand beside ours, found once and started for each number of ranks.
#pragma once

#include "apps/bench/collectives/contender.h"
#include "apps/bench/collectives/mpi_tools.h"
#include "apps/bench/collectives/options.h"
#include "apps/bench/collectives/scratch_folder.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::apps {

using Contenders = std::vector<std::unique_ptr<Contender>>;

class Peers {
 public:
  // Finds the peers that `options` names; one line on standard error for each that is not
  // installed, which is then left out. BadInput for a name that is none.
  explicit Peers(const CollectivesOptions& options);

  // Ours first, then the peers in the order of their names in `options`; all are ready.
  [[nodiscard]] Contenders start(int ranks);

 private:
  // Empty, or why it cannot take part.
  [[nodiscard]] std::string find(const std::string& name, const CollectivesOptions& options);
  // False, after a line on standard error, for a peer that cannot be used after all.
  [[nodiscard]] bool is_ready(Contender& peer);
  [[nodiscard]] RankProcesses start_ranks(const std::string& name, int ranks) const;

  ScratchFolder folder_;
  std::vector<std::string> names_;
  std::string python_;
  std::map<std::string, MpiTools> mpi_;  // by the names of those peers that need one
};

}  // namespace lockstep::apps
