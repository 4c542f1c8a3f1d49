// Stage: a part of a model in a pipeline; and split(), which splits a model into stages without
// editing it.
//
//   torch::nn::Sequential model(...);
//   auto stages = lockstep::split(model, {"2", "4"});     // 0 and 1; 2 and 3; the rest
//
// A stage's module has the parameters and buffers of its part under their names in the whole model,
// so that a pipeline saves the same as one process. No function here is collective.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// The inputs or outputs of a stage: one tensor or several.
using Tensors = std::vector<at::Tensor>;

// A function of one micro-batch. Its inputs may be saved for backward() and must not be changed in
// place.
using StageForward = std::function<Tensors(const Tensors& inputs)>;

// Different tensors of a pipeline's stages must have different names.
struct Stage {
  std::string name;  // for messages
  std::shared_ptr<torch::nn::Module> module;
  StageForward forward;
};

namespace detail {

[[noreturn]] void throw_wrong_inputs(const std::string& module, std::size_t expected,
                                     std::size_t found);

inline Tensors listed_tensors(at::Tensor output) { return {std::move(output)}; }
inline Tensors listed_tensors(Tensors outputs) { return outputs; }
template <typename... Outputs>
Tensors listed_tensors(std::tuple<Outputs...> outputs) {
  return std::apply([](auto&... each) { return Tensors{std::move(each)...}; }, outputs);
}
template <typename First, typename Second>
Tensors listed_tensors(std::pair<First, Second> outputs) {
  return {std::move(outputs.first), std::move(outputs.second)};
}

template <typename Impl, typename Result, typename... Arguments, std::size_t... places>
StageForward forward_of(std::shared_ptr<Impl> module, Result (Impl::*forward)(Arguments...),
                        std::index_sequence<places...>) {
  return [module = std::move(module), forward](const Tensors& inputs) {
    if (inputs.size() != sizeof...(Arguments))
      throw_wrong_inputs(module->name(), sizeof...(Arguments), inputs.size());
    return listed_tensors((module.get()->*forward)(inputs[places]...));
  };
}

}  // namespace detail

// Makes a stage by hand: `forward` computes with `module`, whose tensors get the names NAME.weight
// and so on.
[[nodiscard]] Stage stage_of(std::string name, std::shared_ptr<torch::nn::Module> module,
                             StageForward forward);
// Makes a stage from a member function of a module: stage_of("head", module, &HeadImpl::forward).
// It must take tensors and return a tensor, a tuple or pair of tensors, or a std::vector of them.
// The stage keeps the module alive.
template <typename Impl, typename Result, typename... Arguments>
[[nodiscard]] Stage stage_of(std::string name, std::shared_ptr<Impl> module,
                             Result (Impl::*forward)(Arguments...)) {
  StageForward call = detail::forward_of(module, forward, std::index_sequence_for<Arguments...>());
  return stage_of(std::move(name), std::shared_ptr<torch::nn::Module>(std::move(module)),
                  std::move(call));
}
// Overload for a module with one forward().
template <typename Impl>
[[nodiscard]] Stage stage_of(std::string name, const torch::nn::ModuleHolder<Impl>& module) {
  return stage_of(std::move(name), module.ptr(), &Impl::forward);
}

// A step of the forward() of a model that is not a Sequential: a function, and the names of the
// modules whose parameters and buffers the function uses (or of single parameters and buffers).
// Modules in several pieces are tied across their stages.
struct ModelPiece {
  std::string name;
  std::vector<std::string> modules;
  StageForward forward;
};

// Splits before the children with these names. The children between two points form a stage; a
// module of a Sequential may take several tensors only if it is the first of its stage, and return
// a tuple of up to four only if it is the last one. Throws InvalidArgument, which names a point
// that is not a child (and suggests a name), occurs twice, is out of order or has no child before
// it.
[[nodiscard]] std::vector<Stage> split(const torch::nn::Sequential& model,
                                       const std::vector<std::string>& points);

// Overload for a model described as a list of pieces, which are computed one after another:
//
//   std::vector<lockstep::ModelPiece> pieces{{"embedding", {"wte", "wpe"}, embed}};
//   for (int i = 0; i < layers; ++i) pieces.push_back({name(i), {name(i)}, block(i)});
//   pieces.push_back({"head", {"ln_f", "wte"}, head});              // wte is tied
//   auto stages = lockstep::split(model, pieces, {"h.4", "h.8"});
//
// The functions refer to the model's modules and must keep them alive. Also throws InvalidArgument
// if a named module is not in the model, or if a parameter of the model is in no piece, because it
// would not be trained; the message has the name.
[[nodiscard]] std::vector<Stage> split(const torch::nn::Module& model,
                                       const std::vector<ModelPiece>& pieces,
                                       const std::vector<std::string>& points);

// Returns points that divide the pieces between the first and the last one, the blocks, into
// `stages` parts as evenly as possible; the first piece joins the first part, and the last piece
// joins the last one. Throws InvalidArgument if there are fewer blocks than stages.
[[nodiscard]] std::vector<std::string> even_points(const std::vector<ModelPiece>& pieces,
                                                   int stages);

}  // namespace lockstep

#pragma GCC visibility pop
