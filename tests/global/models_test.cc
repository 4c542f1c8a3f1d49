#include <lockstep/models/conv_net.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/mlp.h>

#include "support/torch/backend_test.h"
#include "tests_of_global.h"

#include <torch/torch.h>

#include <functional>
#include <map>

namespace lockstep {
namespace {

using test::mesh_of_ranks;

// Placements of a model's parameters, by suffix of the name; other parameters are replicated.
using Layout = std::vector<std::pair<std::string, Placements>>;

Placements placements_of(const std::string& name, const Layout& layout, std::size_t axes) {
  for (const auto& [end, placements] : layout)
    if (name.ends_with(end)) return placements;
  return Placements(axes);
}

struct Step {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

template <class Model>
using Loss = std::function<at::Tensor(Model&, const at::Tensor&, const at::Tensor&)>;

template <class Optimizer, class Options, class Model>
Step train(Model& model, const Loss<Model>& loss, const at::Tensor& data, const at::Tensor& target,
           Options options, int steps) {
  Optimizer optimizer(model->parameters(), options);
  Step result;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor value = loss(model, data, target);
    value.backward();
    optimizer.step();
    result.losses.push_back(test::values_of(value).template item<double>());
  }
  for (const auto& item : model->named_parameters())
    result.parameters[item.key()] = test::values_of(item.value()).clone();
  return result;
}

void expect_same(const Step& found, const Step& expected, const std::string& what) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-9) << what;
  for (const auto& [name, values] : expected.parameters)
    EXPECT_TRUE(found.parameters.at(name).allclose(values, 1e-7, 1e-9)) << what << ": " << name;
}

template <class Model>
void distribute_parameters(Model& model, const Mesh& mesh, const Layout& layout) {
  for (auto& item : model->named_parameters())
    distribute_(item.value(), mesh, placements_of(item.key(), layout, mesh.axes().size()));
}

class Models : public test::BackendTest {
 protected:
  // Trains a model in double precision on plain tensors, and again with placed parameters and data.
  template <class Model, class Optimizer, class Options>
  void compare(const std::function<Model()>& make, const Loss<Model>& loss, const at::Tensor& data,
               const at::Tensor& target, Options options, const std::vector<int>& shape,
               const Layout& layout, const Placements& of_data, const std::string& what) {
    Model plain = test::module_of_seed(3, make);
    Step expected = train<Optimizer>(plain, loss, data, target, options, 3);
    run([&](Group world) {
      Mesh mesh = mesh_of_ranks(world, shape);
      set_global_options(mesh, {.replicate_plain = true});
      Model model = test::module_of_seed(3, make);
      distribute_parameters(model, mesh, layout);
      Step found = train<Optimizer>(model, loss, distribute(data, mesh, of_data),
                                    distribute(target, mesh, of_data), options, 3);
      expect_same(found, expected, what);
    });
  }
};

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

TEST_P(Models, AnMlpTrainsAsOnOneProcess) {
  using models::Mlp;
  auto make = [] { return Mlp(models::MlpOptions{.sizes = {6, 10, 8, 5}}); };
  Loss<Mlp> loss = [](Mlp& model, const at::Tensor& x, const at::Tensor& y) {
    return torch::nn::functional::cross_entropy(model->forward(x), y);
  };
  torch::manual_seed(5);
  at::Tensor x = torch::randn({7, 6}, at::kDouble), y = torch::randint(5, {7});
  Layout columns_then_rows = {{"0.weight", {Shard(0)}},
                              {"0.bias", {Shard(0)}},
                              {"1.weight", {Shard(1)}},
                              {"2.weight", {Shard(0)}},
                              {"2.bias", {Shard(0)}}};
  std::vector<int> line = {size()};
  auto sgd = SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
  compare<Mlp, torch::optim::SGD, SGDOptions>(make, loss, x, y, sgd, line, {}, {Replicate()},
                                              "replicated");
  compare<Mlp, torch::optim::SGD, SGDOptions>(make, loss, x, y, sgd, line, {}, {Shard(0)},
                                              "rows of the batch");
  compare<Mlp, torch::optim::SGD, SGDOptions>(make, loss, x, y, sgd, line, columns_then_rows,
                                              {Replicate()}, "columns and rows");
  compare<Mlp, torch::optim::AdamW, AdamWOptions>(make, loss, x, y, AdamWOptions(0.01), line,
                                                  columns_then_rows, {Replicate()},
                                                  "columns and rows, AdamW");
  compare<Mlp, torch::optim::AdamW, AdamWOptions>(make, loss, x, y, AdamWOptions(0.01), line,
                                                  {{"weight", {Shard(0)}}}, {Shard(0)},
                                                  "all weights and the batch");
}

TEST_P(Models, AGptTrainsAsOnOneProcess) {
  using models::Gpt;
  models::GptOptions options;
  options.layers = 2;
  options.heads = 4;
  options.hidden_size = 8;
  options.context_length = 6;
  options.vocabulary = 11;
  auto make = [&] { return Gpt(options); };
  Loss<Gpt> loss = [](Gpt& model, const at::Tensor& x, const at::Tensor& y) {
    return model->loss(x, y);
  };
  torch::manual_seed(5);
  at::Tensor x = torch::randint(11, {4, 6}), y = torch::randint(11, {4, 6});
  Layout tensor_parallel = {{"c_attn.weight", {Shard(0, 3)}},   {"c_attn.bias", {Shard(0, 3)}},
                            {"attn.c_proj.weight", {Shard(1)}}, {"c_fc.weight", {Shard(0)}},
                            {"c_fc.bias", {Shard(0)}},          {"mlp.c_proj.weight", {Shard(1)}}};
  std::vector<int> line = {size()};
  auto adamw = AdamWOptions(0.01);
  compare<Gpt, torch::optim::AdamW, AdamWOptions>(make, loss, x, y, adamw, line, {}, {Replicate()},
                                                  "replicated");
  compare<Gpt, torch::optim::AdamW, AdamWOptions>(make, loss, x, y, adamw, line, {}, {Shard(0)},
                                                  "rows of the batch");
  compare<Gpt, torch::optim::AdamW, AdamWOptions>(make, loss, x, y, adamw, line, tensor_parallel,
                                                  {Replicate()}, "tensor parallel");
  Layout with_vocabulary = tensor_parallel;
  with_vocabulary.push_back({"wte.weight", {Shard(0)}});
  compare<Gpt, torch::optim::SGD, SGDOptions>(make, loss, x, y, SGDOptions(0.1), line,
                                              with_vocabulary, {Replicate()}, "vocabulary");
  if (size() % 2 != 0) return;
  Layout on_two;
  for (const auto& [name, placements] : tensor_parallel)
    on_two.push_back({name, {Replicate(), placements[0]}});
  compare<Gpt, torch::optim::AdamW, AdamWOptions>(make, loss, x, y, adamw, {2, size() / 2}, on_two,
                                                  {Shard(0), Replicate()}, "two axes");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Models,
                         testing::Values(std::tuple(test::BackendKind::local, 1),
                                         std::tuple(test::BackendKind::local, 2),
                                         std::tuple(test::BackendKind::local, 3),
                                         std::tuple(test::BackendKind::local, 4),
                                         std::tuple(test::BackendKind::shm, 2)),
                         test::backend_test_name);

}  // namespace
}  // namespace lockstep
