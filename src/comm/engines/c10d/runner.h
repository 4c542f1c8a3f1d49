// The operations of Group in those of any c10d backend. Moves go as bytes, so that every dtype
// works. What an engine lacks (uneven parts, averages, half precision summed in float, minima that
// keep NaN) is composed here of moves: each rank gets every rank's values of one share, combines
// them in the order of the tree and passes the result on, so what travels has the tensor's dtype.
//
// On a device a call runs on a stream of its channel's own, which comes after what the posting
// thread had given to its stream until the post, and a run ends when the device has come to its
// end: so what any thread gives to any stream after Work::wait() sees the outputs.
#pragma once

#include "base/mutex.h"
#include "comm/backend/blocking_engine.h"
#include "comm/engines/c10d/engine.h"

#include <c10/core/Stream.h>

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::c10d_engine {

class C10dRunner final : public BlockingEngine {
 public:
  C10dRunner(std::shared_ptr<Engine> engine, int rank, int size)
      : engine_(std::move(engine)), rank_(rank), size_(size) {}

  [[nodiscard]] std::string_view name() const override { return engine_->name(); }
  [[nodiscard]] std::string objection_to(const at::Tensor& tensor) override {
    return engine_->objection_to(tensor);
  }
  void run(const PostedCall& call) override;
  void close(std::string_view reason) noexcept override;
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override;
  [[nodiscard]] std::shared_ptr<BlockingEngine> subset(std::span<const int> ranks,
                                                       const std::string& name, int rank,
                                                       Duration timeout) override;

 private:
  // The stream of a call's channel on a device.
  [[nodiscard]] c10::Stream stream_of(const PostedCall& call, c10::Device device);
  void run_on(c10::Device device, const PostedCall& call);

  // Starts and awaits one c10d operation or a few; throws what c10d throws, and Aborted when the
  // engine is closed.
  void perform(const PostedCall& call);
  void all_reduce(const PostedCall& call);
  void reduce(const PostedCall& call);
  void broadcast(const PostedCall& call);
  void all_gather(const PostedCall& call);
  void reduce_scatter(const PostedCall& call);
  void all_to_all(const PostedCall& call);
  // CallDiffers names a rank that sends or expects something else than this one's counts say. The
  // engine would not find out: Gloo ends the process.
  void compare_counts(const PostedCall& call);
  void scatter(const PostedCall& call);
  void barrier(const PostedCall& call);
  void message(const PostedCall& call);

  // Every rank's input.
  std::vector<at::Tensor> all_inputs(const PostedCall& call);
  // Sends each rank its part of the input; returns every rank's values of this rank's part. The
  // parts have `counts` elements; empty: equal parts.
  std::vector<at::Tensor> dealt(const PostedCall& call, const std::vector<std::int64_t>& counts);
  // The combination of all ranks' values of this rank's share of the input. It has as many elements
  // on every rank; on the last ranks some of them may be padding.
  at::Tensor combined_share(const PostedCall& call);
  // Fills `all` with every rank's `mine`.
  void gather_evenly(const PostedCall& call, const at::Tensor& all, const at::Tensor& mine);
  // The same on the root; `all` is undefined elsewhere.
  void gather_to_root(const PostedCall& call, const at::Tensor& all, const at::Tensor& mine);
  // Starts an operation under the mutex, marked for this call, and waits for it.
  template <class Start>
  void await(const PostedCall& call, Start start);

  std::shared_ptr<Engine> engine_;
  int rank_;
  int size_;
  Mutex launching_;  // held at each launch, and while the engine is being closed
  bool closed_ LOCKSTEP_GUARDED_BY(launching_) = false;  // nothing is launched any more
  std::atomic<int> running_{0};                          // launched and not over
  Mutex mutex_;
  std::map<std::pair<ChannelKey, c10::DeviceIndex>, c10::Stream> streams_
      LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::c10d_engine
