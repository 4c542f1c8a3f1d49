// Commits: the state of a training in shared memory, where it outlives the processes that train.
//
// A commit costs each rank one copy of the elements that it would write into a checkpoint, and one
// small all_reduce, in which the ranks also agree whether the round ends here. On several hosts the
// ranks of each write the whole state into its memory, so that any host that is left has it; a host
// whose ranks have parts of it only (sharded over hosts) keeps nothing, and checkpoints on a disk
// take its place.
#pragma once

#include "checkpoint/layout_json.h"
#include "elastic/commit_file.h"
#include "elastic/commit_files.h"
#include "elastic/host_commits.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>

#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The file of the program's own tensors, beside those of a checkpoint.
inline constexpr const char* program_file = "program.safetensors";

// What is committed, on this rank, now. The tensors of `own` are equal on all ranks.
struct CommitContent {
  const Handle& handle;
  const torch::optim::Optimizer& optimizer;
  const checkpoint::TrainingState& state;
  const checkpoint::SaveOptions& options;  // scheduler and scaler
  const checkpoint::NamedTensors& own;
};

class Commits {
 public:
  // Collective. `folder`: of the run on this host; empty: nothing is kept in memory.
  Commits(Group group, const std::filesystem::path& folder, std::int64_t round);

  // Collective, before the first commit of a round: the folder of the newest state that all ranks
  // of a host had committed in an earlier round, in the form of a checkpoint's that rank 0 sees;
  // empty where there is none.
  [[nodiscard]] std::filesystem::path newest();

  // Collective, between steps. Returns whether any rank said `leaves`. CommonFailure for a state
  // that cannot be saved; where memory is short, a line says that nothing is kept any more.
  bool commit(const CommitContent& content, bool leaves);

  // At the end of the training, when no rank commits any more: nothing stays.
  void remove();

  // Whether commits are kept on this host; not where it has parts of the state only, or its memory
  // was short.
  [[nodiscard]] bool are_kept() const { return !folder_.empty(); }

 private:
  struct Parts;
  [[nodiscard]] Parts parts_of(const CommitContent& content, const at::Tensor& random) const;
  [[nodiscard]] at::Tensor random_states();
  void keep_nothing(const std::string& why);
  [[nodiscard]] bool fits(const Parts& parts) const;
  [[nodiscard]] bool are_intact() const;
  void keep(Parts& parts, bool is_new);
  void plan(const Parts& parts);
  void make_buffer(int buffer);
  void make_files(int buffer, const std::filesystem::path& in);
  void open_files(int buffer, const std::filesystem::path& in);
  void write(int buffer, Parts& parts);

  Group group_;
  const HostCommits host_;
  Group local_;                   // the ranks of this host
  std::filesystem::path folder_;  // of this host; empty: nothing is kept
  const std::int64_t round_;
  std::int64_t generations_ = 0;      // that this round has begun
  std::filesystem::path generation_;  // the present one
  std::vector<CommitFile> files_;     // in the order of Parts::files; empty: not planned
  std::array<bool, commit_buffers> is_made_{};
  std::array<SharedFile, commit_buffers> text_;
  std::size_t text_bytes_ = 0;   // reserved
  checkpoint::Metadata sealed_;  // on rank 0
  CommitControl control_;
  std::int64_t number_ = 0;  // commits of this generation
};

}  // namespace lockstep
