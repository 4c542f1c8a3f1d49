// Classification of small photographs of ten kinds: CIFAR-10 with ResNet-18.
#pragma once

#include "train/tasks/images.h"

#include <lockstep/models/resnet.h>

namespace lockstep::train {

class CifarTask : public ImagesTask {
 public:
  [[nodiscard]] std::string name() const override { return "cifar"; }
  [[nodiscard]] Options defaults() const override;
  void declare(Settings& settings) override;

  [[nodiscard]] double parameters() const override;
  [[nodiscard]] double activations() const override;
  [[nodiscard]] ParallelPlan parallel_plan() const override {
    return {.blocks = {"layer1.*", "layer2.*", "layer3.*", "layer4.*"}};
  }
  void check_tensors(const checkpoint::NamedTensors& tensors) const override;

  // With --augment, each image is shifted by up to 4 pixels in both directions and may be mirrored.
  // The random numbers come from a generator per step, so they are equal for any number of ranks.
  [[nodiscard]] Batch batch(std::int64_t step) override;

 private:
  [[nodiscard]] data::Images read(const std::string& folder, bool is_training) const override;
  [[nodiscard]] Network make_network() const override;
  [[nodiscard]] at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& target,
                                   std::int64_t reduction) const override;

  std::int64_t width_ = 64;
  bool augments_ = true;
};

}  // namespace lockstep::train
