// Models and their losses on numbered micro-batches, so that every rank and the one-process
// reference compute the same batches.
#pragma once

#include "parallel/support.h"

namespace lockstep::test {

struct Problem {
  std::string name;
  std::vector<std::string> units;  // sharded separately if parameters are sharded
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, std::int64_t)>
      loss;  // of the micro-batch with this number
};

inline std::vector<Problem> problems() {
  auto mlp = [] { return models::Mlp(models::MlpOptions{{36, 33, 10}}).ptr(); };
  auto conv = [] { return ConvNet().ptr(); };
  models::GptOptions small{.layers = 2,
                           .heads = 2,
                           .hidden_size = 16,
                           .context_length = 8,
                           .vocabulary = 11,
                           .bias = true};
  auto gpt = [small] { return models::Gpt(small).ptr(); };
  auto ids = [](std::int64_t seed) {
    return ((values({3, 8}, seed) + 0.5) * 2048).to(at::kLong).remainder(11);
  };
  return {{"Mlp",
           {"layers.*"},
           mlp,
           [](auto& m, auto n) {
             return image_loss(m.template as<models::MlpImpl>()->forward(values({5, 36}, n)));
           }},
          {"ConvNet",
           {"conv", "fc"},
           conv,
           [](auto& m, auto n) {
             return image_loss(m.template as<ConvNetImpl>()->forward(values({5, 36}, n)));
           }},
          {"Gpt", {"transformer.h.*"}, gpt, [ids](auto& m, auto n) {
             return m.template as<models::GptImpl>()->loss(ids(n), ids(n + 1));
           }}};
}

inline std::vector<at::Tensor> trainable(torch::nn::Module& module) {
  std::vector<at::Tensor> list;
  for (auto& parameter : module.parameters())
    if (parameter.requires_grad()) list.push_back(parameter);
  return list;
}

}  // namespace lockstep::test
