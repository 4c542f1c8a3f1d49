#include "parallel/sharded/checks.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/text.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"
#include "parallel/bucket.h"
#include "sys/files.h"
#include "sys/mapped_file.h"
#include "sys/topology.h"

#include <lockstep/dispatch/deferred_init.h>
#include <lockstep/dispatch/part.h>

#include <ATen/ops/full.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <string>
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
          "fully_shard: compute_dtype and reduce_dtype must be floating-point dtypes, found {}",
          name_of(dtype));
  check(options.offload.empty() || !options.offload_to_host,
        "fully_shard: offload (to a folder) and offload_to_host cannot both be set");
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
  for (std::string& line : parallel::deferred_lines(module)) lines.push_back(std::move(line));
  for (std::string& line : modules::lines_of_held(tensors)) lines.push_back(std::move(line));
  return lines;
}

// Returns the properties that must be equal on all ranks.
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
          "fully_shard: another handle averages the gradient of {}; release it first", name);
  }
}

// Called before anything is changed.
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
    throw InvalidArgument(
        formatted("fully_shard: node_shared storage needs ranks that share the memory of one host "
                  "(backends local and shm), found the backend {}; use private_memory, or on "
                  "several hosts a mesh whose last axis lies in a host",
                  group.backend()));
  }
}

ParameterMemory memory_of(const ParameterSize& size, int world, const ShardOptions& options) {
  std::int64_t whole = size.elements * size.computed_bytes;
  std::int64_t shard = size.elements * size.own_bytes / world;
  std::int64_t resident = options.offload.empty() ? shard : 0;
  std::int64_t gradient = size.requires_grad ? size.elements * size.reduced_bytes : 0;
  bool shared = options.storage == ShardStorage::node_shared;
  bool in_whole = !size.is_cast && (shared || options.level != ShardLevel::full);
  bool stays = options.level == ShardLevel::optimizer || options.reduce_in_step;
  ParameterMemory memory{.in_flight = stays ? 0 : gradient};
  if (options.level == ShardLevel::full && !shared) memory.in_flight += whole;
  if (!in_whole) memory.kept += resident;
  if (shared) memory.kept += whole / world;
  if (!shared && options.level != ShardLevel::full) memory.kept += whole;
  memory.kept += stays ? gradient : gradient == 0 ? 0 : resident;
  return memory;
}

namespace {

std::int64_t this_place() {
  std::string place = sys::host_identity();
  try {
    place += sys::read_file("/proc/self/cgroup");
  } catch (const SystemError&) {
    // There are no control groups: use the host only.
  }
  return static_cast<std::int64_t>(fingerprint(place));
}

std::int64_t size_of(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// Returns the host bytes for a parameter on a device: its shard, and the average beside it.
std::int64_t host_bytes_of(const at::Tensor& parameter, int world, const ShardOptions& options) {
  if (!options.offload_to_host) return 0;
  std::int64_t shard = parameter.numel() * size_of(parameter.scalar_type()) / world;
  return parameter.requires_grad() ? 2 * shard : shard;
}

ParameterSize parameter_size(const at::Tensor& parameter, const ShardOptions& options) {
  c10::ScalarType own = parameter.scalar_type();
  bool is_real = c10::isFloatingType(own);
  c10::ScalarType computed = is_real ? options.compute_dtype.value_or(own) : own;
  c10::ScalarType reduced = is_real ? options.reduce_dtype.value_or(computed) : computed;
  return {.elements = parameter.numel(),
          .own_bytes = size_of(own),
          .computed_bytes = size_of(computed),
          .reduced_bytes = size_of(reduced),
          .is_cast = own != computed,
          .requires_grad = parameter.requires_grad()};
}

}  // namespace

std::optional<MemoryNeed> first_shortage(std::span<const MemoryNeed> needs) {
  std::map<std::int64_t, MemoryNeed> places;
  for (const MemoryNeed& need : needs) {
    MemoryNeed& sum =
        places.try_emplace(need.place, MemoryNeed{need.place, 0, need.available}).first->second;
    sum.needed += need.needed;
    sum.available = std::min(sum.available, need.available);
    if (sum.needed > sum.available) return sum;
  }
  return std::nullopt;
}

std::int64_t bytes_needed(const std::vector<NamedParameter>& parameters,
                          const std::vector<layout::PlannedUnit>& plan, int world,
                          const ShardOptions& options) {
  std::int64_t needed = 0, largest = 0;
  for (const layout::PlannedUnit& unit : plan) {
    ShardOptions own_options = options_of(unit, options);
    std::int64_t in_flight = 0, made = 0;  // `made`: bytes allocated while it is sharded
    for (int i : unit.items) {
      const at::Tensor& parameter = parameters[static_cast<std::size_t>(i)].tensor;
      if (!parameter.device().is_cpu()) {
        needed += host_bytes_of(parameter, world, own_options);
        continue;
      }
      ParameterMemory bytes = memory_of(parameter_size(parameter, own_options), world, own_options);
      std::int64_t own = parameter.numel() * size_of(parameter.scalar_type());
      auto stored = static_cast<std::int64_t>(parameter.storage().nbytes());
      bool is_there = dispatch::has_memory(parameter);
      needed += bytes.kept - (is_there ? std::min(own, stored) : 0);
      in_flight += bytes.in_flight;
      if (!is_there) made += own;
    }
    largest = std::max({largest, in_flight, made});
  }
  return std::max<std::int64_t>(0, needed + largest);
}

void check_memory(const Group& group, std::int64_t needed, const CallOptions& call) {
  const auto all =
      modules::numbers_of_all(group, {this_place(), needed, sys::memory_size().available}, call);
  std::vector<MemoryNeed> needs;
  for (std::size_t i = 0; i < all.size(); i += 3) needs.push_back({all[i], all[i + 1], all[i + 2]});
  std::optional<MemoryNeed> shortage = first_shortage(needs);
  if (!shortage) return;
  auto ranks_there = std::ranges::count(needs, shortage->place, &MemoryNeed::place);
  check_input(false,
              "fully_shard: the ranks of one host ({}) need {} more for parameters and gradients, "
              "but {} are available (on the host, or within its control groups); use a higher "
              "level, more hosts, or smaller units",
              ranks_there, format_bytes(shortage->needed), format_bytes(shortage->available));
}

void check_room(const Offload& offload, const Group& group,
                const std::vector<NamedParameter>& parameters, int world, const CallOptions& call) {
  std::int64_t bytes = 0;
  for (const auto& parameter : parameters)
    bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
  sys::ReservedFile room;
  std::exception_ptr refused;
  try {
    room = sys::ReservedFile(offload.folder(), static_cast<std::size_t>(bytes / world));
  } catch (const SystemError&) {
    refused = std::current_exception();
  }
  Group ranks = group;
  at::Tensor failed = at::full({1}, refused ? 1 : 0, at::kInt);
  ranks.all_reduce(failed, Op::sum, call).wait();
  if (refused) std::rethrow_exception(refused);
  check_input(failed.item<int>() == 0,
              "fully_shard: {} of {} ranks cannot put their shards in the folder for offload",
              failed.item<int>(), group.size());
}

}  // namespace lockstep::sharded
