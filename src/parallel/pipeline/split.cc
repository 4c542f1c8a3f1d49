#include "parallel/pipeline/split.h"

#include "base/check.h"
#include "base/text.h"
#include "module/tensors.h"

#include <lockstep/parallel/pipeline/stage.h>

#include <torch/nn/modules/container/any.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

namespace lockstep::pipeline {
namespace {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// Merges modules with the same name that differ into one with the members of all of them.
void merge_into(torch::nn::Module& all, const Modules& modules) {
  std::vector<std::pair<std::string, Modules>> children;
  for (const auto& module : modules) {
    for (const auto& one : module->named_parameters(/*recurse=*/false))
      if (!all.named_parameters(/*recurse=*/false).contains(one.key()))
        all.register_parameter(one.key(), one.value(), one.value().requires_grad());
    for (const auto& one : module->named_buffers(/*recurse=*/false))
      if (!all.named_buffers(/*recurse=*/false).contains(one.key()))
        all.register_buffer(one.key(), one.value());
    for (const auto& child : module->named_children()) {
      auto place =
          std::ranges::find(children, child.key(), &std::pair<std::string, Modules>::first);
      if (place == children.end()) place = children.insert(place, {child.key(), {}});
      Modules& same = place->second;
      if (std::ranges::find(same, child.value()) == same.end()) same.push_back(child.value());
    }
  }
  for (const auto& [name, same] : children) {
    if (same.size() == 1) {
      all.register_module(name, same.front());
    } else {
      merge_into(*all.register_module(name, std::make_shared<torch::nn::Module>("Stage")), same);
    }
  }
}

}  // namespace

std::shared_ptr<PartOfModel> merged(const Modules& modules) {
  auto all = std::make_shared<PartOfModel>();
  merge_into(*all, modules);
  // Modules that were kept unchanged report their own aliases.
  const std::vector<Alias> told = aliases_of(*all);
  std::vector<Alias> aliases;
  for (const auto& module : modules)
    for (Alias& alias : aliases_of(*module))
      if (std::ranges::find(told, alias.name, &Alias::name) == told.end() &&
          std::ranges::find(aliases, alias.name, &Alias::name) == aliases.end())
        aliases.push_back(std::move(alias));
  all->set_aliases(std::move(aliases));
  return all;
}

}  // namespace lockstep::pipeline

namespace lockstep {
namespace {

using pipeline::PartOfModel;

// Returns the begins and ends of the stages among the names.
std::vector<std::size_t> cuts_of(const std::vector<std::string>& names,
                                 const std::vector<std::string>& points) {
  const std::vector<std::string_view> known(names.begin(), names.end());
  std::vector<std::size_t> cuts{0};
  check(!names.empty(), "split: the model has nothing to be cut");
  for (const std::string& point : points) {
    const auto found = std::ranges::find(names, point);
    if (found == names.end())
      throw InvalidArgument("split: " + unknown_name("point", point, known));
    const auto at = static_cast<std::size_t>(found - names.begin());
    check(at > cuts.back(), "split: point {}: expected something between it and {}, found nothing",
          point, cuts.size() == 1 ? "the beginning" : "the point before it");
    cuts.push_back(at);
  }
  cuts.push_back(names.size());
  return cuts;
}

// Converts the values that a module may return and a Sequential passes on.
Tensors tensors_in(torch::nn::AnyValue& value, const std::string& stage) {
  using at::Tensor;
  if (auto* one = value.try_get<Tensor>()) return {std::move(*one)};
  if (auto* list = value.try_get<Tensors>()) return std::move(*list);
  if (auto* two = value.try_get<std::tuple<Tensor, Tensor>>())
    return detail::listed_tensors(std::move(*two));
  if (auto* three = value.try_get<std::tuple<Tensor, Tensor, Tensor>>())
    return detail::listed_tensors(std::move(*three));
  if (auto* four = value.try_get<std::tuple<Tensor, Tensor, Tensor, Tensor>>())
    return detail::listed_tensors(std::move(*four));
  throw InvalidArgument(
      formatted("split: stage {}: expected a tensor, a tuple of up to four or a std::vector of "
                "tensors, found "
                "{}",
                stage, c10::demangle(value.type_info().name())));
}

torch::nn::AnyValue first_of(torch::nn::AnyModule& module, const Tensors& in,
                             const std::string& stage) {
  switch (in.size()) {
    case 1:
      return module.any_forward(in[0]);
    case 2:
      return module.any_forward(in[0], in[1]);
    case 3:
      return module.any_forward(in[0], in[1], in[2]);
    case 4:
      return module.any_forward(in[0], in[1], in[2], in[3]);
    default:
      throw InvalidArgument(
          formatted("split: stage {}: expected 1 to 4 tensors, found {}", stage, in.size()));
  }
}

StageForward forward_of(std::vector<torch::nn::AnyModule> modules, std::string stage) {
  return [modules = std::move(modules), stage = std::move(stage)](const Tensors& inputs) mutable {
    torch::nn::AnyValue value = first_of(modules.front(), inputs, stage);
    for (std::size_t i = 1; i < modules.size(); ++i)
      value = modules[i].any_forward(std::move(value));
    return tensors_in(value, stage);
  };
}

std::string range_of(const std::string& first, const std::string& last) {
  return first == last ? first : first + ".." + last;
}

void check_all_trained(const torch::nn::Module& model, const std::vector<Stage>& stages) {
  std::set<const at::TensorImpl*> had;
  for (const Stage& stage : stages)
    for (const at::Tensor& tensor : stage.module->parameters())
      had.insert(tensor.unsafeGetTensorImpl());
  for (const NamedParameter& parameter : unique_parameters(model))
    check(had.contains(parameter.tensor.unsafeGetTensorImpl()),
          "split: parameter {}: expected it in a piece, found it in none; name its module there",
          parameter.name);
}

}  // namespace

namespace detail {

void throw_wrong_inputs(const std::string& module, std::size_t expected, std::size_t found) {
  throw InvalidArgument(
      formatted("stage of {}: expected {} tensors, found {}", module, expected, found));
}

}  // namespace detail

Stage stage_of(std::string name, std::shared_ptr<torch::nn::Module> module, StageForward forward) {
  auto part = std::make_shared<PartOfModel>();
  modules::add_module(*part, name, std::move(module));
  return {std::move(name), std::move(part), std::move(forward)};
}

std::vector<Stage> split(const torch::nn::Sequential& model,
                         const std::vector<std::string>& points) {
  std::vector<std::string> names;
  for (const auto& child : model->named_children()) names.push_back(child.key());
  const std::vector<std::size_t> cuts = cuts_of(names, points);
  std::vector<Stage> stages;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::string name = range_of(names[cuts[i]], names[cuts[i + 1] - 1]);
    auto part = std::make_shared<PartOfModel>();
    std::vector<torch::nn::AnyModule> modules;
    for (std::size_t child = cuts[i]; child < cuts[i + 1]; ++child) {
      modules::add_module(*part, names[child], model->ptr(child));
      modules.push_back(*(model->begin() + static_cast<std::ptrdiff_t>(child)));
    }
    stages.push_back({name, std::move(part), forward_of(std::move(modules), name)});
  }
  return stages;
}

namespace {

// The model's modules, parameters and buffers by name.
class Names {
 public:
  explicit Names(const torch::nn::Module& model)
      : modules_(model.named_modules(std::string(), /*include_self=*/false)),
        parameters_(model.named_parameters()),
        buffers_(model.named_buffers()) {
    for (const auto& module : modules_) known_.push_back(module.key());
    for (const auto& parameter : parameters_) known_.push_back(parameter.key());
    for (const auto& buffer : buffers_) known_.push_back(buffer.key());
  }

  void check_known(const ModelPiece& piece) const {
    for (const std::string& name : piece.modules)
      if (std::ranges::find(known_, name) == known_.end())
        throw InvalidArgument(
            formatted("split: piece {}: {}", piece.name, unknown_name("module", name, known_)));
  }

  // Returns everything that `names` select, each once.
  [[nodiscard]] std::shared_ptr<PartOfModel> part_of(const std::set<std::string>& names) const {
    auto part = std::make_shared<PartOfModel>();
    for (const std::string& name : names) {
      const auto is_around = [&](const std::string& other) {
        return name.starts_with(other + ".");
      };
      if (std::ranges::any_of(names, is_around)) continue;
      if (modules_.contains(name)) {
        modules::add_module(*part, name, modules_[name]);
      } else if (parameters_.contains(name)) {
        modules::add_parameter(*part, name, parameters_[name]);
      } else {
        modules::add_buffer(*part, name, buffers_[name]);
      }
    }
    return part;
  }

 private:
  torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  torch::OrderedDict<std::string, at::Tensor> parameters_, buffers_;
  std::vector<std::string_view> known_;
};

StageForward in_turn(std::vector<StageForward> steps) {
  return [steps = std::move(steps)](const Tensors& inputs) {
    Tensors values = inputs;
    for (const StageForward& step : steps) values = step(values);
    return values;
  };
}

}  // namespace

std::vector<Stage> split(const torch::nn::Module& model, const std::vector<ModelPiece>& pieces,
                         const std::vector<std::string>& points) {
  std::vector<std::string> names;
  const Names of_model(model);
  for (const ModelPiece& piece : pieces) {
    names.push_back(piece.name);
    of_model.check_known(piece);
  }
  const std::vector<std::size_t> cuts = cuts_of(names, points);
  const std::vector<Alias> aliases = aliases_of(model);
  std::vector<Stage> stages;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::set<std::string> taken;
    std::vector<StageForward> steps;
    for (std::size_t piece = cuts[i]; piece < cuts[i + 1]; ++piece) {
      steps.push_back(pieces[piece].forward);
      taken.insert(pieces[piece].modules.begin(), pieces[piece].modules.end());
    }
    auto part = of_model.part_of(taken);
    std::vector<Alias> own;
    std::ranges::copy_if(aliases, std::back_inserter(own), [&](const Alias& alias) {
      return part->named_parameters().contains(alias.registered);
    });
    part->set_aliases(std::move(own));
    stages.push_back({range_of(names[cuts[i]], names[cuts[i + 1] - 1]), std::move(part),
                      in_turn(std::move(steps))});
  }
  check_all_trained(model, stages);
  return stages;
}

std::vector<std::string> even_points(const std::vector<ModelPiece>& pieces, int stages) {
  const auto blocks = static_cast<std::int64_t>(pieces.size()) - 2;
  check(stages >= 1 && blocks >= stages, "even_points: expected {} blocks or more, found {}",
        stages, blocks);
  std::vector<std::string> points;
  for (std::int64_t stage = 1; stage < stages; ++stage)
    points.push_back(pieces[static_cast<std::size_t>(1 + blocks * stage / stages)].name);
  return points;
}

}  // namespace lockstep
