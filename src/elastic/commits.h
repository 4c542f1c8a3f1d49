// Commits: the training state in shared memory, where it survives the training processes.
//
// In a commit, each rank copies the elements that it would write into a checkpoint, and takes part
// in one small all_reduce, in which the ranks also agree whether the round ends here. With several
// hosts, the ranks of each host write the whole state into the host's memory, so that one remaining
// host is enough. If a host's ranks have only parts of the state (the model is sharded over hosts),
// the host keeps nothing, and the run relies on checkpoints.
#pragma once

#include "elastic/commit_files.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>

#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// The file of the program's own tensors, in addition to the files of a checkpoint.
inline constexpr const char* program_file = "program.safetensors";

// The state of this rank to be committed. The tensors of `own` are equal on all ranks.
struct CommitContent {
  const Handle& handle;
  const torch::optim::Optimizer& optimizer;
  const checkpoint::TrainingState& state;
  const checkpoint::SaveOptions& options;  // scheduler and scaler
  const checkpoint::NamedTensors& own;
};

class Commits {
 public:
  // Collective. `folder` is the run's folder on this host; if empty, nothing is kept in memory.
  Commits(Group group, const std::filesystem::path& folder, std::int64_t round);

  // Returns the folder of the newest state that all ranks of a host committed in an earlier round.
  // It has the form of a checkpoint folder, which rank 0 can read; empty if there is no such state.
  // Collective: call it before the first commit of a round.
  [[nodiscard]] std::filesystem::path newest();

  // Commits the state between two steps. Collective. Returns true if any rank passed `leaves`.
  // Throws CollectiveFailure for a state that cannot be saved. If memory is short, prints a line
  // and keeps no further commits.
  bool commit(const CommitContent& content, bool leaves);

  // Removes everything. Call it at the end of the training, after the last commit of every rank.
  void remove();

  // Returns true if commits are kept on this host. False if the host has only parts of the state,
  // or its memory was short.
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
  Group local_;                   // the ranks of this host
  std::filesystem::path folder_;  // of this host; empty: nothing is kept
  bool has_others_ = false;       // the group is on several hosts
  const std::int64_t round_;
  std::int64_t generations_ = 0;      // begun in this round
  std::filesystem::path generation_;  // the current one
  std::vector<CommitFile> files_;     // in the order of Parts::files; empty: not planned
  std::array<bool, commit_buffers> is_made_{};
  std::array<SharedFile, commit_buffers> text_;
  std::size_t text_bytes_ = 0;   // reserved
  checkpoint::Metadata sealed_;  // on rank 0
  CommitControl control_;
  std::int64_t number_ = 0;  // commits of this generation
};

}  // namespace lockstep
