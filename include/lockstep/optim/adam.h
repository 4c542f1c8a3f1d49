// Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015) in one pass over
// memory: a torch::optim::Adam of which only step() differs. adamw.h says how.
//
// Weight decay is added to the gradient (g = g + weight_decay * w), unlike AdamW's.
#pragma once

#include <lockstep/optim/state.h>
#include <lockstep/optim/treatment.h>
#include <lockstep/optim/update_options.h>

#include <torch/optim/adam.h>

#include <vector>

namespace lockstep::optim {

class Adam : public torch::optim::Adam, public TreatsGradients {
 public:
  explicit Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                torch::optim::AdamOptions defaults = {}, UpdateOptions update = {});
  explicit Adam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions defaults = {},
                UpdateOptions update = {});

  // As AdamW::step().
  at::Tensor step(LossClosure closure = nullptr) override;

  void load(torch::serialize::InputArchive& archive) override;

 private:
  [[nodiscard]] std::vector<at::Tensor> treated_parameters() const override;
  void update(const ElementTreatment& treatment) override;

  UpdateOptions update_;
};

}  // namespace lockstep::optim
