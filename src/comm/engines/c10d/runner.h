// The operations of any c10d backend, for lanes (comm/lanes).
//
// On a device a call runs on a stream of its route's own, which comes after what the posting thread
// had given to its stream until the post, and a run ends when the device has come to its end: so
// whatever anybody gives to any stream after Work::wait() sees the outputs.
#pragma once

#include "comm/backend/blocking_engine.h"
#include "comm/engines/c10d/engine.h"
#include "comm/engines/c10d/operations.h"

#include <c10/core/Stream.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

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
  // The stream of a call's route on a device.
  [[nodiscard]] c10::Stream stream_of(const PostedCall& call, c10::Device device);
  void run_on(c10::Device device, const PostedCall& call);

  std::shared_ptr<Engine> engine_;
  int rank_;
  int size_;
  Launches launches_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, c10::DeviceIndex>, c10::Stream> streams_;  // under mutex_
};

}  // namespace lockstep::c10d_engine
