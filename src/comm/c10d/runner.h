// The operations of any c10d backend, for lanes (comm/lanes).
#pragma once

#include "comm/c10d/engine.h"
#include "comm/c10d/operations.h"
#include "comm/lanes/runner.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::c10d_engine {

class C10dRunner final : public lanes::Runner {
 public:
  C10dRunner(std::shared_ptr<Engine> engine, int rank, int size)
      : engine_(std::move(engine)), rank_(rank), size_(size) {}

  [[nodiscard]] std::string_view name() const override { return engine_->name(); }
  [[nodiscard]] bool takes(const at::Tensor& tensor) const override {
    return engine_->takes(tensor);
  }
  void run(const PostedCall& call) override;
  void close(std::string_view reason) noexcept override;
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override;
  [[nodiscard]] std::shared_ptr<Runner> subset(std::span<const int> ranks, const std::string& name,
                                               int rank, Duration timeout) override;

 private:
  std::shared_ptr<Engine> engine_;
  int rank_;
  int size_;
  Launches launches_;
};

}  // namespace lockstep::c10d_engine
