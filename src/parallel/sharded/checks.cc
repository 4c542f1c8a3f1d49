#include "parallel/sharded/checks.h"

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "module/rank_check.h"
#include "module/specs.h"
#include "parallel/gradient_hooks.h"
#include "parallel/sharded/deferred_values.h"

#include <lockstep/dispatch/deferral.h>
#include <lockstep/dispatch/part.h>

#include <optional>
#include <string_view>
#include <utility>

namespace lockstep::sharded {
namespace {

std::string_view name_of(ShardLevel level) {
  switch (level) {
    case ShardLevel::optimizer:
      return "optimizer";
    case ShardLevel::gradients:
      return "gradients";
    case ShardLevel::full:
      return "full";
  }
  return "?";
}

std::string name_of(const std::optional<c10::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "the parameters'";
}

}  // namespace

void check_options(const ShardOptions& options) {
  std::vector<std::optional<c10::ScalarType>> dtypes = {options.compute_dtype,
                                                        options.reduce_dtype};
  for (const UnitRule& rule : options.units) dtypes.push_back(rule.compute_dtype);
  for (const auto& dtype : dtypes)
    check(!dtype || c10::isFloatingType(*dtype),
          "fully_shard: parameters are computed with and gradients are summed in a floating-point "
          "dtype, found {}",
          name_of(dtype));
  check(options.offload.empty() || !options.offload_to_host,
        "fully_shard: what is offloaded goes to a folder (offload) or to the host's memory "
        "(offload_to_host), not to both");
  check(options.prefetch >= 0, "fully_shard: prefetch must be at least 0 units, found {}",
        options.prefetch);
}

std::vector<layout::PlannedUnit> plan_of(const std::vector<NamedParameter>& parameters,
                                         const UnitRules& rules) {
  std::vector<layout::UnitItem> items;
  for (const auto& [name, tensor, aliases] : parameters)
    items.push_back({name,
                     modules::kind_of(tensor) + (tensor.requires_grad() ? "" : ", frozen") +
                         (dispatch::part_of(tensor) != nullptr ? ", a part" : ""),
                     aliases});
  std::vector<std::string> patterns;
  for (const UnitRule& rule : rules) patterns.push_back(rule.pattern);
  return layout::plan_units(items, patterns);
}

std::vector<std::string> lines_of(const torch::nn::Module& module,
                                  const modules::ModuleTensors& tensors) {
  std::vector<std::string> lines = modules::lines_of(tensors);
  for (std::string& line : deferred_lines(module)) lines.push_back(std::move(line));
  for (std::string& line : modules::lines_of_held(tensors)) lines.push_back(std::move(line));
  return lines;
}

// What all ranks must agree on.
std::vector<std::string> describe(const torch::nn::Module& module,
                                  const modules::ModuleTensors& tensors,
                                  const ShardOptions& options) {
  std::vector<std::string> lines = {
      formatted("option level = {}", name_of(options.level)),
      formatted("option storage = {}",
                options.storage == ShardStorage::node_shared ? "node_shared" : "private_memory"),
      formatted("option reduce_in_step = {}", options.reduce_in_step),
      formatted("option compute_dtype = {}", name_of(options.compute_dtype)),
      formatted("option reduce_dtype = {}", name_of(options.reduce_dtype)),
      formatted("option reshard_after_forward = {}", options.reshard_after_forward),
      formatted("option offload = {}", options.offload_to_host   ? "to the host"
                                       : options.offload.empty() ? "none"
                                                                 : "to a folder"),
      formatted("option prefetch = {}", options.prefetch),
      formatted("option find_unused_parameters = {}", options.find_unused_parameters),
      formatted("option broadcast_buffers = {}", options.broadcast_buffers)};
  for (const UnitRule& rule : options.units)
    lines.push_back(
        formatted("units {}, reshard_after_forward = {}, compute_dtype = {}", rule.pattern,
                  rule.reshard_after_forward.value_or(options.reshard_after_forward),
                  name_of(rule.compute_dtype ? rule.compute_dtype : options.compute_dtype)));
  for (const std::string& pattern : options.ignored)
    lines.push_back(formatted("option ignored {}", pattern));
  for (std::string& line : lines_of(module, tensors)) lines.push_back(std::move(line));
  return lines;
}

void check_not_divided(const std::vector<NamedParameter>& parameters) {
  for (const auto& [name, tensor, aliases] : parameters) {
    const bool is_part = dispatch::part_of(tensor) != nullptr && dispatch::has_memory(tensor);
    check(!dispatch::is_lazy(tensor) || dispatch::is_deferred(tensor) || is_part,
          "fully_shard: {} is sharded already, by another handle", name);
    check(!parallel::is_hooked(tensor),
          "fully_shard: another handle averages the gradient of {}; let it go before", name);
  }
}

// Before anything is changed.
void check_storage(const Groups& groups, const std::vector<NamedParameter>& parameters,
                   const ShardOptions& options) {
  check(!options.reduce_in_step || options.storage == ShardStorage::node_shared,
        "fully_shard: reduce_in_step needs node_shared storage, found private_memory");
  check(!options.reduce_in_step || groups.replicas.size() == 1,
        "fully_shard: reduce_in_step: expected one copy of each shard, all ranks on the last axis, "
        "found {} copies",
        groups.replicas.size());
  if (options.storage != ShardStorage::node_shared) return;
  Group group = groups.gather;
  for (const auto& [name, tensor, aliases] : parameters)
    check(tensor.device().is_cpu(),
          "fully_shard: node_shared storage is host memory, but {} is on {}", name,
          tensor.device().str());
  try {
    (void)group.empty_node_shared({1}, at::kByte);
  } catch (const InvalidArgument&) {
    throw InvalidArgument(formatted(
        "fully_shard: node_shared storage needs ranks that share the memory of one host (engines "
        "local and shm), found the engine {}; take private_memory, or on several hosts a mesh "
        "whose last axis lies in a host",
        group.backend()));
  }
}

}  // namespace lockstep::sharded
