// Models and optimizers whose update the ranks of a host divide, and the same without that.
#pragma once

#include "parallel/data/hook_support.h"

#include <lockstep/optim/adam.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

// In this order: divided, with a rest of a block; each rank's own; divided.
inline const std::vector<std::vector<std::int64_t>> shared_shapes = {
    {131, 257}, {5}, {130, 130}, {7, 3}};

using MakeUpdating = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>,
                                                                            optim::UpdateOptions)>;

template <class Ours, class Options>
MakeUpdating updating_by(Options options) {
  return [options](std::vector<at::Tensor> parameters, optim::UpdateOptions update) {
    return std::make_unique<Ours>(std::move(parameters), options, std::move(update));
  };
}

inline MakeUpdating by_adamw() {
  return updating_by<optim::AdamW>(torch::optim::AdamWOptions(0.01));
}
inline MakeUpdating by_momentum() {
  return updating_by<optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9));
}

// A model and its optimizer, with and without the division.
struct SharedTraining {
  SharedTraining(const Group& group, const MakeUpdating& make, bool is_shared,
                 optim::UpdateOptions update = {}, at::ScalarType dtype = at::kFloat)
      : table(shared_shapes, dtype), ddp(table, group) {
    if (is_shared) update.shared = ddp.shared_update();
    optimizer = make(ddp.parameters(), update);
  }
  void backward(int step) {
    ddp.zero_grad();
    test::backward(ddp, *table, step);
  }
  void step(int number) {
    backward(number);
    optimizer->step();
  }

  Table table;
  DistributedDataParallel ddp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

inline std::string archive_of(const torch::optim::Optimizer& optimizer) {
  std::stringstream stream;
  torch::save(optimizer, stream);
  return stream.str();
}

// Names and bits of all that the optimizer keeps, as its archive has them.
inline std::vector<std::pair<std::string, at::Tensor>> bits_of_state(
    torch::optim::Optimizer& optimizer) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const auto* state = dynamic_cast<const optim::ExtraState*>(found->second.get());
      for (const auto& [name, tensor] : state->plain_fields()) all.emplace_back(name, tensor);
    }
  return all;
}

inline void expect_same_training(SharedTraining& found, SharedTraining& expected,
                                 const std::string& where) {
  for (std::size_t i = 0; i < shared_shapes.size(); ++i) {
    EXPECT_TRUE(same_bits(found.table->weights[i], expected.table->weights[i]))
        << where << " " << i;
    const at::Tensor &a = found.table->weights[i].grad(), &b = expected.table->weights[i].grad();
    EXPECT_EQ(a.defined(), b.defined()) << where << " gradient " << i;
    if (a.defined() && b.defined()) EXPECT_TRUE(same_bits(a, b)) << where << " gradient " << i;
  }
  auto a = bits_of_state(*found.optimizer), b = bits_of_state(*expected.optimizer);
  ASSERT_EQ(a.size(), b.size()) << where;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first) << where;
    EXPECT_TRUE(same_bits(a[i].second, b[i].second)) << where << " " << i << " " << a[i].first;
  }
}

}  // namespace lockstep::test
