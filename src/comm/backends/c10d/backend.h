// Performs Group's operations with those of any c10d backend. Data moves as bytes, so that every
// dtype works. Operations that a backend lacks (uneven parts, averages, half precision summed in
// float, minima that keep NaN) are composed of moves: each rank receives every rank's values of one
// share, combines them in the order of the reduction tree and passes the result on, so the
// transferred data has the tensor's dtype.
//
// On a device, a call runs on a stream of its channel, ordered after the work that the posting
// thread had queued on its stream before the post. If the backend has_streams(), the posting thread
// launches the call there and continues. Launch order is then program order over all groups and
// messages, as NCCL requires for several communicators on one GPU (NVIDIA/nccl issues 195, 208,
// 1174). For other backends, run() returns when the device has finished the call.
#pragma once

#include "base/mutex.h"
#include "comm/backend/blocking_collectives.h"
#include "comm/backend/options.h"
#include "comm/backends/c10d/connection.h"

#include <c10/core/Stream.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::c10d_backend {

class C10dBackend final : public BlockingCollectives {
 public:
  // `store` and `options` are those of the world.
  C10dBackend(std::shared_ptr<C10dConnection> connection, std::shared_ptr<Store> store, int rank,
              int size, BackendOptions options)
      : connection_(std::move(connection)),
        store_(std::move(store)),
        rank_(rank),
        size_(size),
        options_(std::move(options)) {}

  [[nodiscard]] std::string_view name() const override { return connection_->name(); }
  [[nodiscard]] std::string objection_to(const at::Tensor& tensor) override {
    return connection_->objection_to(tensor);
  }
  void run(const PostedCall& call) override;
  [[nodiscard]] bool has_streams() const override { return connection_->has_streams(); }
  [[nodiscard]] std::shared_ptr<Launched> launch(const PostedCall& call) override;
  void check_peers() override { connection_->check_peers(); }
  void close(std::string_view reason) noexcept override;
  [[nodiscard]] std::shared_ptr<BlockingCollectives> subset(std::span<const int> ranks,
                                                            const std::string& name, int rank,
                                                            Duration timeout) override;
  [[nodiscard]] std::shared_ptr<BlockingCollectives> on_host(const std::string& name,
                                                             Duration timeout) override;

 private:
  // Return the stream of a call's channel on a device, and the stream for copies between host and
  // device, which never wait for peers.
  [[nodiscard]] c10::Stream stream_of(const PostedCall& call, c10::Device device);
  [[nodiscard]] c10::Stream copy_stream(c10::Device device);
  [[nodiscard]] c10::Stream stream_of(ChannelKey channel, c10::Device device);
  void run_on(c10::Device device, const PostedCall& call);
  // Copies a tensor from the host on the current stream. Does not wait for copies of a few numbers.
  [[nodiscard]] static at::Tensor copied_to(c10::Device device, const at::Tensor& host);
  // Copies the tensors of a call from the host; `stream` waits for the copies.
  [[nodiscard]] PostedCall copied_to(c10::Device device, const PostedCall& call,
                                     const c10::Stream& stream);

  // Copies an output of a call to the caller's tensor in host memory. Throws Aborted if the backend
  // is closed: the caller may have seen the error, and its memory may be gone.
  void copy_back(const at::Tensor& from, const at::Tensor& to);

  // Starts one or more c10d operations and, unless the call is being launched, waits for them.
  // Throws c10d's exceptions, and Aborted if the backend is closed.
  void perform(const PostedCall& call);
  void all_reduce(const PostedCall& call);
  void reduce(const PostedCall& call);
  void broadcast(const PostedCall& call);
  void all_gather(const PostedCall& call);
  void reduce_scatter(const PostedCall& call);
  void all_to_all(const PostedCall& call);
  // Throws CallDiffers, with a rank whose counts do not match this rank's. A launched call makes
  // the comparison in one of its steps. Without it, Gloo would end the process.
  void compare_counts(const PostedCall& call);
  void scatter(const PostedCall& call);
  void barrier(const PostedCall& call);
  void message(const PostedCall& call);

  // Returns true if the backend adds the values of this call. The sums of others are composed here.
  [[nodiscard]] bool summed_by_c10d(const PostedCall& call) const;
  // Returns every rank's input.
  std::vector<at::Tensor> all_inputs(const PostedCall& call);
  // Sends each rank its part of the input; returns every rank's values of this rank's part. The
  // parts have `counts` elements; empty: equal parts.
  std::vector<at::Tensor> dealt(const PostedCall& call, const std::vector<std::int64_t>& counts);
  // Returns this rank's share of the input, combined over all ranks. All shares have the same
  // number of elements; on the last ranks some of them may be padding.
  at::Tensor combined_share(const PostedCall& call);
  // Fills `all` with every rank's `mine`.
  void gather_evenly(const PostedCall& call, const at::Tensor& all, const at::Tensor& mine);
  // Gathers every rank's `mine` into `all` on the root; `all` is undefined elsewhere.
  void gather_to_root(const PostedCall& call, const at::Tensor& all, const at::Tensor& mine);
  // Starts an operation under the mutex, with the mark of this call. If the call is being launched,
  // the current stream waits for the operation; otherwise the host does.
  template <class Start>
  void await(const PostedCall& call, Start start);

  std::shared_ptr<C10dConnection> connection_;
  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  const BackendOptions options_;
  std::mutex launching_;  // held at each launch; close() waits for it for a limited time
  std::atomic<bool> closed_ = false;  // nothing may be launched any more
  std::atomic<int> running_{0};       // launched and not finished
  Mutex copying_;                     // held while outputs are copied
  bool may_copy_ LOCKSTEP_GUARDED_BY(copying_) = true;
  Mutex mutex_;
  std::map<std::pair<ChannelKey, c10::DeviceIndex>, c10::Stream> streams_
      LOCKSTEP_GUARDED_BY(mutex_);
  // The number of a channel's calls that run on its queue. Later calls are not launched before
  // these.
  std::map<ChannelKey, int> queued_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::c10d_backend
