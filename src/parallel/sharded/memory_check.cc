#include "parallel/sharded/memory_check.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/text.h"
#include "dispatch/lazy_storage.h"
#include "parallel/sharded/memory_formula.h"
#include "parallel/sharded/unit_options.h"
#include "sys/files.h"
#include "sys/topology.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <string>

namespace lockstep::sharded {
namespace {

std::int64_t this_place() {
  std::string place = sys::host_identity();
  try {
    place += sys::read_file("/proc/self/cgroup");
  } catch (const SystemError&) {
    // No control groups: the host alone.
  }
  return static_cast<std::int64_t>(fingerprint(place));
}

std::int64_t size_of(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// What the host is to hold of a parameter on a device: its shard, and the average beside it.
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
    std::int64_t in_flight = 0, made = 0;  // when it is divided
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
  at::Tensor own = at::tensor({this_place(), needed, sys::memory_size().available}, at::kLong);
  at::Tensor all = at::empty({3 * group.size()}, at::kLong);
  Group ranks = group;
  ranks.all_gather(all, own, call).wait();
  std::vector<MemoryNeed> needs;
  const auto* values = all.const_data_ptr<std::int64_t>();
  for (int rank = 0; rank < group.size(); ++rank, values += 3)
    needs.push_back({values[0], values[1], values[2]});
  std::optional<MemoryNeed> shortage = first_shortage(needs);
  if (!shortage) return;
  auto ranks_there = std::ranges::count(needs, shortage->place, &MemoryNeed::place);
  check_input(
      false,
      "fully_shard: the {} ranks of one host need {} more for parameters and gradients, and "
      "{} are available (of the machine, or what its control groups leave); take a higher "
      "level, more hosts, or smaller units",
      ranks_there, format_bytes(shortage->needed), format_bytes(shortage->available));
}

}  // namespace lockstep::sharded
