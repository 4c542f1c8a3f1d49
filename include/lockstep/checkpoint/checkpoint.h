// Saves and loads training state, for any loop and any strategy. No rank ever holds the whole model
// or the whole optimizer state.
//
//   std::int64_t step = 0;
//   if (auto saved = lockstep::checkpoint::load_latest("out", handle, adamw)) step = saved->step;
//   while (step < steps) {
//     ...
//     adamw.step();
//     if (++step % 100 == 0) lockstep::checkpoint::save("out", handle, adamw, {.step = step});
//   }
//
// A checkpoint is a folder (lockstep/checkpoint/training_state.h). It does not depend on the ranks
// that wrote it: any number of ranks can load it, under DistributedDataParallel, fully_shard() at
// every level and Pipeline, with LibTorch's optimizers or ours, bit-identically. One exception:
// 8-bit optimizer state (StateFormat::blockwise) has other blocks on another number of ranks, so it
// is rounded again.
//
// Every rank writes its elements, each element once: elements that several ranks have are divided
// among them. A rank that does not see the folder, because hosts share no disk, exchanges its parts
// with rank 0, 4 MiB at a time. So rank 0 must see the folder.
//
// All functions here are collective over handle.group(), must be called between steps, and block on
// the disk; ranks wait for each other at most for the group's timeout. An error of one rank is
// thrown on all ranks as the same CollectiveFailure; the group stays usable, the unfinished files
// are removed, and older checkpoints are not changed. If a rank is lost while it saves, the others
// get PeerLost. If rank 0 is lost, the leftover folder has a name that is not taken for a
// checkpoint, and the next save removes it. Only one writer at a time may save into a folder:
// others are refused. If the disk has no room for all files, the save fails before the first is
// written. checkpoint/async_saver.h saves during training.
//
// Optimizers: Adam, AdamW, SGD, RMSprop and Adagrad of LibTorch and those of lockstep::optim.
// Others, such as LBFGS, are refused by name before anything is written. All of the optimizer's
// parameters must belong to the handle. Its hyperparameters are not saved.
#pragma once

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}
namespace lockstep::optim {
class GradScaler;
class Scheduler;
}  // namespace lockstep::optim

namespace lockstep::checkpoint {

// The number of files for the model, and for the optimizer's state. Each tensor is in one file, and
// the files have about the same size. Any number of ranks can write and read any number of files.
struct Sharding {
  int files = 0;                               // 0: as many as give about `bytes` each
  std::int64_t bytes = std::int64_t{4} << 30;  // large enough that most models are one file
};

struct SaveOptions {
  // Saved beside the optimizer; null: not used.
  const optim::Scheduler* scheduler = nullptr;
  const optim::GradScaler* scaler = nullptr;
  std::int64_t keep = 0;      // number of checkpoints to keep in the folder; 0: all
  Metadata description = {};  // added to the metadata of model.safetensors
  Sharding sharding = {};
  // This rank's own tensors by name, such as the state() of a communication hook or DiLoCo. Must be
  // dense; ranks may have different ones, or none.
  std::map<std::string, at::Tensor> per_rank = {};
  // Called by rank 0 after everything is written and before the final rename. If it throws, the
  // save fails and nothing has changed. Set it if hosts take turns to write into the folder and a
  // host that was cut off may come back (an elastic run). If it is set, a lock of another host is
  // ignored.
  std::function<void()> before_naming = {};
};

// Writes OUT/step-00000100 for state.step, with the random states of all ranks (LibTorch's default
// CPU generator), and returns its path. Creates OUT if it does not exist. Uses rank 0's state and
// options. Never overwrites an existing step, and saves no step earlier than an existing one,
// because load_latest() would take the later one.
//
// Buffers are those of rank 0. So is the optimizer's state if each rank updates its own copy of the
// model (LocalSgd, DiLoCo, post_local_sgd()); load() gives it to every rank. Tensors that the
// handle ignores differ per rank and are saved for each rank.
std::filesystem::path save(const std::filesystem::path& out, const Handle& handle,
                           const torch::optim::Optimizer& optimizer, const TrainingState& state,
                           const SaveOptions& options = {});

// The number of tensor bytes that this rank has read from the disk.
struct LoadCounts {
  std::uint64_t read = 0;      // to load; on rank 0 also for ranks that do not see the files
  std::uint64_t verified = 0;  // only to compare checksums
};

struct LoadOptions {
  // Pass it if and only if the checkpoint contains its state; otherwise load() throws.
  optim::Scheduler* scheduler = nullptr;
  optim::GradScaler* scaler = nullptr;
  // Compares each tensor with its checksum. Each rank reads its share of everything except the
  // optimizer's state a second time for it. The optimizer's state is compared while it is read,
  // beside the old state, which is released when all checksums match. If a rank lacks memory for
  // both, this state is also read twice.
  bool verify = true;
  LoadCounts* counts = nullptr;  // load() adds the bytes that it reads
  // Receives this rank's tensors of SaveOptions::per_rank: new tensors, on the CPU. Empty if the
  // numbers of ranks that save and load differ, or if there are no such tensors. Must be set if the
  // checkpoint has such tensors; otherwise load() throws.
  std::map<std::string, at::Tensor>* per_rank = nullptr;
};

// Loads the values of a checkpoint folder into the model, the optimizer and the other objects, and
// returns the state that was saved beside them. Restores the random generators if as many ranks
// load as saved (TrainingState::ranks); otherwise they are not changed.
//
// Checks everything before changing anything: each name, shape and dtype, the checksums, and the
// states of the scheduler and the scaler. If the disk fails after that, the values of model and
// optimizer are undefined.
TrainingState load(const std::filesystem::path& folder, Handle& handle,
                   torch::optim::Optimizer& optimizer, const LoadOptions& options = {});

// Loads the newest checkpoint in `out`, as rank 0 sees it. Does nothing if there is no checkpoint.
std::optional<TrainingState> load_latest(const std::filesystem::path& out, Handle& handle,
                                         torch::optim::Optimizer& optimizer,
                                         const LoadOptions& options = {});

// Returns the state beside model and optimizer, as rank 0 reads it.
[[nodiscard]] TrainingState read_training_state(Group& group, const std::filesystem::path& folder);

// Collective version of verify() of training_state.h: each byte is read once, or once per disk that
// has a copy. Throws CollectiveFailure on every rank if the checkpoint is damaged or incomplete.
void verify(Group& group, const std::filesystem::path& folder);

struct ModelOptions {
  Metadata metadata = {};
  // If true, writes a tied weight under each of its names, like PyTorch's state_dict(); otherwise
  // once.
  bool aliases = false;
  std::function<void()> before_naming = {};  // as SaveOptions::before_naming
};

// Writes the model as one safetensors file under the names of Python's state_dict(). Replaces
// `path` atomically, after the new file has reached the disk. The folder must exist.
void save_model(const std::filesystem::path& path, const Handle& handle,
                const ModelOptions& options = {});

// Loads such a file, or one that Python wrote, with the same names, shapes and dtypes. If the file
// does not exist, loads the shards that PATH.index.json names. Tied weights may have any of their
// names; if several are present, their values must be equal.
void load_model(const std::filesystem::path& path, Handle& handle, bool verify = true);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
