// AsyncSaver: a save() that blocks only while it copies the data and writes during training, like
// PyTorch's torch.distributed.checkpoint.async_save().
//
//   lockstep::checkpoint::AsyncSaver saver(handle.group());
//   while (step < steps) {
//     ...
//     if (++step % 100 == 0) saver.save("out", handle, adamw, {.step = step});
//   }
//   saver.wait();                       // otherwise an error of the last save is only logged
//
// Saves the values that the tensors, the random generators, the scheduler and the scaler had when
// save() was called. Each rank copies the elements that it writes; of elements that several ranks
// have, each copies its share. The memory of the copy is reused by the next save.
//
// Only one save is written at a time: save() waits for the previous one. A thread of each rank
// writes, using a separate group in host memory (host_memory_group() of comm/device.h), so it does
// not disturb operations of the training's groups. If a rank is lost while it writes, the other
// ranks' saves end with PeerLost.
//
// The next save() (before it begins) or wait() throws errors of the writing, the same on all ranks,
// as checkpoint::save() does. The saver stays usable after a CollectiveFailure, but not after an
// error of the group.
#pragma once

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>

#include <cstddef>
#include <filesystem>
#include <memory>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

class AsyncSaver {
 public:
  // Collective; blocks. Pass the group of the handles to save: handle.group(). On NCCL, throws
  // BadInput on all ranks in a build without Gloo: use checkpoint::save().
  explicit AsyncSaver(const Group& group);
  // Blocks until the current save is written. Logs its error if no call has thrown it.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Collective; call between steps. Like checkpoint::save(), but returns as soon as all ranks have
  // copied their data, with the path that the checkpoint will have. Throws CollectiveFailure for
  // errors that are known before writing: data that cannot be saved, a step that exists already, no
  // address space for the copy (the system may promise more memory than there is), no thread for
  // writing, a handle of another group.
  std::filesystem::path save(const std::filesystem::path& out, const Handle& handle,
                             const torch::optim::Optimizer& optimizer, const TrainingState& state,
                             const SaveOptions& options = {});

  // Blocks until no save is being written; the checkpoint is then on disk. Not collective: call it
  // on every rank that needs to know. Does nothing in a forked child, which has no writing thread.
  void wait();

  // Not collective.
  [[nodiscard]] bool is_writing() const;
  // Not collective. Returns the bytes that the last save's copy took on this rank.
  [[nodiscard]] std::size_t snapshot_bytes() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
