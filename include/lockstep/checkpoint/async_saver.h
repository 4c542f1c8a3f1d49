// AsyncSaver: save() that blocks for a copy of what is saved, and writes while training goes on, as
// PyTorch's torch.distributed.checkpoint.async_save().
//
//   lockstep::checkpoint::AsyncSaver saver(handle.group());
//   while (step < steps) {
//     ...
//     if (++step % 100 == 0) saver.save("out", handle, adamw, {.step = step});
//   }
//   saver.wait();                       // or an error of the last save is only logged
//
// What is saved is what the tensors, the random generators, the scheduler and the scaler were when
// save() was called. Each rank copies the elements that it writes into memory of its own: of what
// several ranks have, each copies its share. It keeps this memory for the next save.
//
// One save is being written at a time: save() waits for the one before it. A thread of each rank
// writes, over a group of its own, so it disturbs no operation of the training's groups. That does
// not hold of NCCL, where two groups that are used at once may block each other for ever: such a
// group is refused. A rank that is lost while it writes is PeerLost there.
//
// Errors of the writing are thrown by the next save(), before it begins, or by wait(): the same on
// all ranks, as checkpoint::save() throws them. After a CommonFailure the saver goes on; after an
// error of the group it does not.
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
  // Collective, blocks. The group of the handles that will be saved: handle.group().
  // InvalidArgument, on all ranks, for a group of NCCL: use checkpoint::save().
  explicit AsyncSaver(const Group& group);
  // Waits for what is being written. An error of it that nobody has been told goes to the log.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Collective, between steps. As checkpoint::save(), and returns the path that the checkpoint will
  // have as soon as all ranks have copied what they write. CommonFailure for what can be known
  // before: what cannot be saved, a step that is there already, no address space for the copy (the
  // system may promise more memory than there is), no thread that could write, a handle of another
  // group.
  std::filesystem::path save(const std::filesystem::path& out, const Handle& handle,
                             const torch::optim::Optimizer& optimizer, const TrainingState& state,
                             const SaveOptions& options = {});

  // Returns when nothing is being written any more: then the checkpoint is on the disk. Every rank
  // that wants to know calls it; it is not collective by itself. Nothing in a forked child, which
  // has no such thread.
  void wait();

  // Local.
  [[nodiscard]] bool is_writing() const;
  // Local. Bytes that the copy of the last save took on this rank.
  [[nodiscard]] std::size_t snapshot_bytes() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
