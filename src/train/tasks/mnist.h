// Classification of handwritten digits with the network of PyTorch's C++ MNIST example.
#pragma once

#include "train/tasks/images.h"

namespace lockstep::train {

class MnistTask : public ImagesTask {
 public:
  [[nodiscard]] std::string name() const override { return "mnist"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;
  [[nodiscard]] ParallelPlan parallel_plan() const override { return {.blocks = {"conv*", "fc*"}}; }

 private:
  [[nodiscard]] data::Images read(const std::string& folder, bool is_training) const override;
  [[nodiscard]] Network make_network() const override;
  [[nodiscard]] at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& target,
                                   std::int64_t reduction) const override;
};

}  // namespace lockstep::train
