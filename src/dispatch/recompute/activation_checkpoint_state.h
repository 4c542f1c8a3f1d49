// ActivationCheckpointState: the shared state of one model's checkpointed blocks.
#pragma once

#include "dispatch/call.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::dispatch {

// HostCopies: copies between a device and pinned host memory, on a stream beside the computation.
//
// Queues copies that run after all work that the calling thread had queued when the object was
// made. Device memory of the copies stays until wait(), which the destructor calls. Not
// thread-safe.
class HostCopies {
 public:
  // `stream`: for the copies; its device is that of the tensors.
  explicit HostCopies(const c10::Stream& stream);
  ~HostCopies() { wait(); }
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Returns the copy of a device tensor in pinned host memory, or the copy of such a tensor on the
  // device. Neither waits for the copy. The copy of a host tensor may be used after wait().
  [[nodiscard]] at::Tensor to_host(const at::Tensor& device);
  [[nodiscard]] at::Tensor to_device(const at::Tensor& host);

  // Orders the calling thread's current stream, and the one at the object's construction, after the
  // copies. The host does not wait.
  void wait();

 private:
  const c10::Stream stream_;
  const c10::Stream origin_;
  std::vector<at::Tensor> memory_;  // on the device
};

// Thread-safe.
class ActivationCheckpointState {
 public:
  struct Counts {
    std::int64_t blocks = 0;             // finished in forward passes
    std::int64_t released_bytes = 0;     // at the end of the blocks
    std::int64_t recomputed_blocks = 0;  // of which some results were recomputed
    std::int64_t operations = 0;         // that ran again
  };

  // `kept`: operations whose results are kept ("aten::mm"). `offloads`: results are copied to host
  // memory instead of recomputed.
  ActivationCheckpointState(std::set<std::string> kept, bool offloads)
      : kept_(std::move(kept)), offloads_(offloads) {}

  [[nodiscard]] bool keeps(const std::string& operation) const { return kept_.contains(operation); }
  [[nodiscard]] bool offloads() const { return offloads_; }
  [[nodiscard]] Counts counts() const;
  void reset_counts();

  // Returns the stream for copies of results on this device.
  [[nodiscard]] c10::Stream copy_stream(c10::Device device);
  // Keeps the copies of a block's results to host memory. The copies before them are waited for, so
  // that no more than two blocks have their results on the device. Null: only waits.
  void depart(std::unique_ptr<HostCopies> copies);

  // Marks result `number` of a block as used outside of the block in forward: it is kept from the
  // next pass on.
  [[nodiscard]] bool is_used_outside(int block, std::size_t number) const;
  void note_use_outside(int block, std::size_t number);

  void count_end(std::int64_t bytes);
  void count_replay(std::int64_t operations);

 private:
  const std::set<std::string> kept_;
  const bool offloads_;
  mutable std::mutex mutex_;
  std::set<std::pair<int, std::size_t>> used_outside_;
  Counts counts_;
  std::map<c10::DeviceIndex, c10::Stream> streams_;
  std::unique_ptr<HostCopies> departing_;
};

// Marks a parameter: its use in forward begins a pass through `block`, unless the pass is in that
// block already. If `block` is -1, its use ends the current block. The mark stays with the
// parameter even if its memory changes.
void mark_block(const at::Tensor& parameter, std::shared_ptr<ActivationCheckpointState> model,
                int block);
// Returns true if a parameter has been marked.
[[nodiscard]] bool has_block_mark(const at::Tensor& parameter);

// Ends a pass through a model on this thread; keeps `results`.
void leave_block(const std::vector<at::Tensor>& results);

// Disables recording on this thread during the object's lifetime.
class [[nodiscard]] BlockPause {
 public:
  BlockPause();
  ~BlockPause();
  BlockPause(const BlockPause&) = delete;
  BlockPause& operator=(const BlockPause&) = delete;
};

// The interceptor that records the operations of checkpointed blocks. While gradients are recorded,
// a block begins at an operation that uses one of its parameters. It ends at an operation that uses
// a parameter of another block or of none, or when backward() begins.
void record_block(Call& call);

}  // namespace lockstep::dispatch
