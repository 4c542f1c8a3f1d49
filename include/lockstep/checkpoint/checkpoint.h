// Saving and going on, for any loop and any strategy: no rank ever holds the whole model or the
// whole optimizer state, neither here nor there.
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
// that wrote it: it is loaded on any number of ranks, under DistributedDataParallel, fully_shard()
// at every level and Pipeline, with LibTorch's optimizer or ours, and at the same bits. But
// optimizer state in 8 bits (StateFormat::blockwise) is divided into other blocks by another
// number of ranks, and then rounded anew.
//
// Every rank writes the elements that it has, each element once: what several ranks have is divided
// among them. A rank that does not see the folder, because no disk is shared between hosts, sends
// its parts to rank 0, and gets them from there, 4 MiB at a time. So rank 0 must see the folder.
//
// Everything here is collective over handle.group(), between steps, and blocks on the disk; ranks
// wait for each other no longer than the group's timeout. An
// error of one rank is thrown on all of them as one CommonFailure, the group lives on, and nothing
// is left of what was being written: older checkpoints stay as they were. (When a rank is lost
// while it saves, the others get PeerLost. When rank 0 is lost, what it leaves has a name that
// nobody takes for a checkpoint, and the next save removes it.) One writer at a time saves into a
// folder: another one is refused. A disk without room for all files is an error before the first is
// written. checkpoint/async_saver.h saves while training goes on.
//
// Optimizers: Adam, AdamW, SGD, RMSprop and Adagrad of LibTorch and those of lockstep::optim.
// Another one, such as LBFGS, is refused by name before anything is written. All of the optimizer's
// parameters must be the handle's. Its hyperparameters are not saved.
#pragma once

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/together.h>
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

// In how many files the model stands, and the optimizer's state: each tensor in one of them, and
// the files of about equal size. Any number of ranks writes and reads any number of files.
struct Sharding {
  int files = 0;                               // 0: as many as have about `bytes` each
  std::int64_t bytes = std::int64_t{4} << 30;  // so most models are one file
};

struct SaveOptions {
  // Saved beside the optimizer; null: there is none.
  const optim::Scheduler* scheduler = nullptr;
  const optim::GradScaler* scaler = nullptr;
  std::int64_t keep = 0;      // how many checkpoints stay in the folder; 0: all
  Metadata description = {};  // goes into the metadata of model.safetensors
  Sharding sharding = {};
  // Tensors of this rank's own, by name: what a communication hook or DiLoCo keeps (their state()).
  // Dense; ranks may have different ones, or none.
  std::map<std::string, at::Tensor> own = {};
  // Called by rank 0 when all is written and before it gets its name; what it throws ends the save,
  // and nothing has changed. For a folder that several hosts write into, one at a time, of which
  // one may be cut off and come back: where this is given, another one's lock is passed over.
  std::function<void()> before_naming = {};
};

// Writes OUT/step-00000100 of state.step, with the random states of all ranks (LibTorch's default
// generator on the CPU), and returns its path. OUT is made when it is not there. Rank 0's state and
// options count. A step that is there already is never overwritten, and none is saved
// beside a later one, which load_latest() would take.
//
// Buffers are rank 0's. Tensors that the handle ignores are each rank's own, and saved for each.
std::filesystem::path save(const std::filesystem::path& out, const Handle& handle,
                           const torch::optim::Optimizer& optimizer, const TrainingState& state,
                           const SaveOptions& options = {});

// Bytes of tensors that this rank has read from the disk.
struct LoadCounts {
  std::uint64_t read = 0;      // into its parts; on rank 0 also for ranks that do not see the files
  std::uint64_t verified = 0;  // only to compare checksums
};

struct LoadOptions {
  // Given exactly when the checkpoint has a state for it: what would be forgotten is an error.
  optim::Scheduler* scheduler = nullptr;
  optim::GradScaler* scaler = nullptr;
  // Compare each tensor with its checksum. All but the optimizer's state is read once more for it,
  // each rank its share; that is compared while it is read, beside the old one, which goes when all
  // is right. Where a rank has no memory for both, it too is read twice.
  bool verify = true;
  LoadCounts* counts = nullptr;  // what load() reads is added to it
  // Gets what this rank has saved as SaveOptions::own: new tensors, on the CPU. Empty where other
  // numbers of ranks save and load, and where there is none. A checkpoint that has such tensors is
  // an error without it.
  std::map<std::string, at::Tensor>* own = nullptr;
};

// Gives the model, the optimizer and the others the values of a checkpoint's folder, and returns
// what was saved beside them. Random generators go on where they were when as many ranks load as
// saved (TrainingState::ranks); otherwise they stay as they are.
//
// Everything is checked before anything is changed: each name, shape and dtype, and the checksums.
// Only where the disk fails after that, model and optimizer are left without meaning.
TrainingState load(const std::filesystem::path& folder, Handle& handle,
                   torch::optim::Optimizer& optimizer, const LoadOptions& options = {});

// The newest checkpoint in `out`, as rank 0 sees it. Nothing is done when there is none.
std::optional<TrainingState> load_latest(const std::filesystem::path& out, Handle& handle,
                                         torch::optim::Optimizer& optimizer,
                                         const LoadOptions& options = {});

// What was saved beside model and optimizer, as rank 0 reads it.
[[nodiscard]] TrainingState read_training_state(Group& group, const std::filesystem::path& folder);

// verify() of training_state.h by all ranks: each byte is read once, or once on each disk that has
// a copy. CommonFailure on every rank for what is not whole.
void verify(Group& group, const std::filesystem::path& folder);

struct ModelOptions {
  Metadata metadata = {};
  // A tied weight stands in the file under each of its names, as PyTorch's state_dict() has it, and
  // not once.
  bool aliases = false;
  std::function<void()> before_naming = {};  // as SaveOptions has it
};

// The model alone, as one safetensors file under the names of Python's state_dict(). `path` is
// replaced at the end, when the whole of the new one has reached the disk. Its folder must be
// there.
void save_model(const std::filesystem::path& path, const Handle& handle,
                const ModelOptions& options = {});

// From such a file, or one that Python wrote, with the same names, shapes and dtypes; or, where
// there is no such file, from the shards that PATH.index.json names. Tied weights may have any of
// their names; under several they must have equal values.
void load_model(const std::filesystem::path& path, Handle& handle, bool verify = true);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
