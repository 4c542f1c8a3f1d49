#include <lockstep/parallel/tensor/plan.h>

#include "base/check.h"
#include "base/text.h"
#include "module/tensors.h"
#include "parallel/tensor/tensor_state.h"

#include <lockstep/layout/name_pattern.h>
#include <lockstep/layout/tensor_slice.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace lockstep::tensor_parallel {
namespace {

std::string_view parent_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

// Returns true if the pattern matches a parameter, or the module that it is registered in.
bool names_it(const std::string& pattern, const NamedParameter& parameter) {
  return std::ranges::any_of(modules::names_of(parameter), [&](const std::string& name) {
    const std::string_view parent = parent_of(name);
    return layout::names_path(pattern, name) ||
           (!parent.empty() && layout::names_path(pattern, parent));
  });
}

[[noreturn]] void refuse_pattern(const std::string& pattern,
                                 const std::vector<PlannedParameter>& parameters) {
  constexpr std::size_t most = 12;
  std::set<std::string> paths;
  for (const PlannedParameter& one : parameters)
    for (const std::string& name : modules::names_of(one.parameter)) {
      paths.insert(name);
      if (!parent_of(name).empty()) paths.emplace(parent_of(name));
    }
  std::vector<std::string_view> known(paths.begin(), paths.end());
  std::ranges::stable_sort(known, {}, [](auto path) { return std::ranges::count(path, '.'); });
  // List all names if one of them is similar to the pattern; otherwise as many as fit in a line.
  if (known.size() > most && !nearest(pattern, known)) known.resize(most);
  throw InvalidArgument("parallelize: expected a pattern that names a parameter or its module, " +
                        unknown_name("pattern", pattern, known));
}

void check_fits(const TensorStyle& style, const PlannedParameter& one, int ranks) {
  const auto& [name, tensor, aliases] = one.parameter;
  check(tensor.dim() > 0, "parallelize: {}: expected a parameter with dims for {}, found a scalar",
        name, describe(style));
  if (!one.placement.is_shard()) return;
  const std::int64_t length = tensor.size(one.placement.dim());
  check(length % style.parts() == 0,
        "parallelize: {}: expected a size divisible by its parts, {}, found {} in dim {} of [{}]",
        name, style.parts(), length, one.placement.dim(), listed(tensor.sizes(), ", "));
  if (style.head_count() == 0) return;
  check(style.head_count() % ranks == 0,
        "parallelize: {}: expected a number of heads divisible by tp, {}, found {}", name, ranks,
        style.head_count());
  check(length / style.parts() % style.head_count() == 0,
        "parallelize: {}: expected a size divisible by parts x heads, {} x {}, found {} in dim {}",
        name, style.parts(), style.head_count(), length, one.placement.dim());
}

std::int64_t bytes_here(const PlannedParameter& one, int ranks) {
  const at::Tensor& tensor = one.parameter.tensor;
  const auto bytes = static_cast<std::int64_t>(tensor.element_size()) * tensor.numel();
  if (!one.placement.is_shard() || bytes == 0) return bytes;
  const std::int64_t block = tensor.size(one.placement.dim()) / one.placement.parts();
  return bytes / block * layout::shard_range(block, ranks, 0).length();
}

std::int64_t bytes_of(const PlannedParameter& one) {
  return static_cast<std::int64_t>(one.parameter.tensor.element_size()) *
         one.parameter.tensor.numel();
}

// Describes the communication for a pattern's last matrix in a step of one rank.
std::string collectives_of(const TensorPlan& plan, const std::vector<PlannedParameter>& parameters,
                           bool sequence_parallel) {
  int rows = 0, tables = 0;
  for (const PlannedParameter& one : parameters) {
    if (one.pattern < 0 || one.parameter.tensor.dim() < 2) continue;
    const auto kind = plan[static_cast<std::size_t>(one.pattern)].second.kind();
    if (kind == TensorStyle::Kind::rowwise) ++rows;
    if (kind == TensorStyle::Kind::vocabulary) ++tables;
  }
  const std::string each =
      sequence_parallel ? "1 all_gather and 1 reduce_scatter in forward, 1 of each in backward"
                        : "1 all_reduce in forward, 1 in backward";
  std::string text =
      formatted("collectives: {} of Colwise and Rowwise, each {}\n", counted(rows, "pair"), each);
  if (tables > 0)
    text +=
        formatted("             {} sharded by vocabulary: a look-up is 1 {} in forward\n",
                  counted(tables, "table"), sequence_parallel ? "reduce_scatter" : "all_reduce");
  return text;
}

std::string text_of(const TensorPlan& plan, const std::vector<PlannedParameter>& parameters,
                    int ranks, bool sequence_parallel) {
  std::string text = formatted("tensor parallel on {}{}\n", counted(ranks, "rank"),
                               sequence_parallel ? ", sequence parallel" : "");
  std::int64_t all = 0, here = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    std::int64_t count = 0, bytes = 0, own = 0;
    for (const PlannedParameter& one : parameters) {
      if (one.pattern != static_cast<int>(i)) continue;
      ++count;
      bytes += bytes_of(one);
      own += bytes_here(one, ranks);
    }
    text += formatted("  {}: {}: {}, {} bytes, {} per rank\n", plan[i].first,
                      describe(plan[i].second), counted(count, "parameter"), bytes, own);
  }
  std::int64_t whole = 0;
  for (const PlannedParameter& one : parameters) {
    all += bytes_of(one);
    here += bytes_here(one, ranks);
    if (one.pattern < 0) whole += bytes_of(one);
  }
  text += formatted("  whole on every rank: {} bytes\n", whole);
  text += formatted("parameters: {} bytes, {} per rank\n", all, here);
  return text + collectives_of(plan, parameters, sequence_parallel);
}

}  // namespace

std::vector<PlannedParameter> planned(const TensorPlan& plan, const torch::nn::Module& module,
                                      int ranks) {
  std::vector<PlannedParameter> all;
  for (NamedParameter& parameter : unique_parameters(module))
    all.push_back({std::move(parameter), Replicate(), -1});
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const auto& [pattern, style] = plan[i];
    bool names_one = false;
    for (PlannedParameter& one : all) {
      if (!names_it(pattern, one.parameter)) continue;
      names_one = true;
      check(one.pattern < 0 || plan[static_cast<std::size_t>(one.pattern)].second == style,
            "parallelize: {}: expected one style, found {} by pattern {} and {} by pattern {}",
            one.parameter.name,
            one.pattern < 0 ? "" : describe(plan[static_cast<std::size_t>(one.pattern)].second),
            one.pattern < 0 ? "" : plan[static_cast<std::size_t>(one.pattern)].first,
            describe(style), pattern);
      one.pattern = static_cast<int>(i);
      one.placement = style.placement(one.parameter.tensor.dim());
      check_fits(style, one, ranks);
    }
    if (!names_one) refuse_pattern(pattern, all);
  }
  return all;
}

}  // namespace lockstep::tensor_parallel

namespace lockstep {

Placement TensorStyle::placement(std::int64_t dims) const {
  if (kind_ != Kind::rowwise) return Shard(0, parts_);
  return dims < 2 ? Placement(Replicate()) : Placement(Shard(1));
}

std::string describe(TensorStyle style) {
  if (style.kind() == TensorStyle::Kind::rowwise) return "Rowwise";
  if (style.kind() == TensorStyle::Kind::vocabulary) return "Vocabulary";
  std::string text = style.parts() == 1 ? "Colwise" : formatted("Colwise({})", style.parts());
  if (style.head_count() > 0) text += formatted(", {} heads", style.head_count());
  return text;
}

std::string describe(const TensorPlan& plan, const torch::nn::Module& module, int ranks,
                     bool sequence_parallel) {
  check(ranks >= 1, "tensor parallel plan: expected at least one rank, found {}", ranks);
  return tensor_parallel::text_of(plan, tensor_parallel::planned(plan, module, ranks), ranks,
                                  sequence_parallel);
}

TensorPlan transformer_tensor_plan(std::int64_t heads, const std::string& prefix) {
  TensorPlan plan;
  auto add_layers = [&](const std::string& layers, std::initializer_list<const char*> attentions) {
    for (const char* attention : attentions) {
      const std::string name = layers + attention;
      plan.push_back({name + ".in_proj_weight", Colwise(3).heads(heads)});
      plan.push_back({name + ".in_proj_bias", Colwise(3).heads(heads)});
      plan.push_back({name + ".out_proj", Rowwise()});
    }
    plan.push_back({layers + "linear1", Colwise()});
    plan.push_back({layers + "linear2", Rowwise()});
  };
  add_layers(prefix + "encoder.layers.*.", {"self_attn"});
  add_layers(prefix + "decoder.layers.*.", {"self_attn", "multihead_attn"});
  return plan;
}

}  // namespace lockstep
