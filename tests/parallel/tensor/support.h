// Support for the tests of tensor parallelism: one model on one process and on ranks, compared part
// by part.
#pragma once

#include <lockstep/dispatch/part.h>
#include <lockstep/global/tensor.h>
#include <lockstep/models/gpt.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/parallelize.h>

#include "parallel/support.h"

#include <torch/nn/modules/activation.h>
#include <torch/optim/adamw.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::test {

// Ranks may be threads, which share the default generator.
inline std::mutex& generator_mutex() {
  static std::mutex one_at_a_time;
  return one_at_a_time;
}

template <typename Make>
auto made_alike(const Make& make, at::ScalarType dtype) {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(11);
  auto model = make();
  model->to(dtype);
  return model;
}

// The heads are divisible by 2, 3 and 4 ranks; the vocabulary and the tokens are not.
inline models::GptOptions small_gpt(std::int64_t layers = 2, bool bias = true) {
  models::GptOptions options;
  options.layers = layers;
  options.heads = 12;
  options.hidden_size = 48;
  options.context_length = 13;
  options.vocabulary = 37;
  options.bias = bias;
  return options;
}

struct TokenBatch {
  explicit TokenBatch(int seed, std::int64_t rows = 4, std::int64_t tokens = 13) {
    const at::Tensor numbers = at::arange(rows * (tokens + 1), at::kLong).view({rows, tokens + 1});
    const at::Tensor all = (numbers * numbers * 7 + numbers * 3 + seed * 5) % 37;
    ids = all.narrow(1, 0, tokens).contiguous();
    targets = all.narrow(1, 1, tokens).contiguous();
  }
  at::Tensor ids, targets;
};

inline double number_of(const at::Tensor& loss) {
  return (is_global(loss) ? full_tensor(loss.detach()) : loss.detach()).item<double>();
}

inline int ranks_of(const std::vector<MeshAxis>& axes) {
  int ranks = 1;
  for (const MeshAxis& axis : axes) ranks *= axis.size;
  return ranks;
}

// Returns the mesh of a module's parameters, which tp and cp have made global tensors.
inline Mesh tensors_of(const torch::nn::Module& module) { return mesh_of(module.parameters()[0]); }

// Returns this rank's rows of a batch.
inline at::Tensor own_rows(const Group& data, const at::Tensor& rows) {
  return rows.tensor_split(data.size())[static_cast<std::size_t>(data.rank())];
}

inline TokenBatch own_rows(const Group& data, TokenBatch batch) {
  batch.ids = own_rows(data, batch.ids);
  batch.targets = own_rows(data, batch.targets);
  return batch;
}

inline double average_over(Group data, const at::Tensor& loss) {
  at::Tensor all = at::full({1}, loss.item<double>(), at::kDouble);
  data.all_reduce(all, Op::average).wait();
  return all.item<double>();
}

// The plain gradients of a module by name.
inline std::map<std::string, at::Tensor> gradients_by_name(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> all;
  for (const NamedParameter& one : unique_parameters(module))
    if (one.tensor.grad().defined()) all[one.name] = one.tensor.grad();
  return all;
}

inline void expect_close_to(const at::Tensor& found, const at::Tensor& expected, double tolerance,
                            const std::string& what) {
  const double scale = expected.numel() == 0 ? 0 : expected.abs().max().item<double>();
  EXPECT_TRUE(at::allclose(found, expected, 0, tolerance * scale + 1e-15))
      << what << ": differs by " << (found - expected).abs().max().item<double>() << " of "
      << scale;
}

inline void expect_gradients_of(const Handle& handle,
                                const std::map<std::string, at::Tensor>& expected,
                                double tolerance) {
  for (const Part& part : handle.named_parameters()) {
    if (part.name == "(none)") continue;  // of a stage without parameters
    const auto found = expected.find(part.name);
    ASSERT_NE(found, expected.end()) << part.name;
    ASSERT_TRUE(part.tensor.grad().defined()) << part.name;
    expect_close_to(dispatch::values_of(part.tensor.grad()).reshape({-1}),
                    cut_part(found->second, part), tolerance, part.name);
  }
}

}  // namespace lockstep::test
