#include "comm/init/choice.h"

#include <lockstep/base/error.h>

#include "base/environment.h"
#include "base/format.h"
#include "comm/backend/accelerator.h"
#include "comm/backends/c10d/make.h"
#include "rank_env/visible_gpus.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include <c10/util/Exception.h>

namespace lockstep {
namespace {

std::string across_hosts(bool by_mpirun, std::span<const std::string_view> names) {
  auto is_here = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  return is_here("mpi") && (by_mpirun || !is_here("gloo")) ? "mpi" : "gloo";
}

// Returns the device of each rank, as an index into the rank's own list.
std::vector<std::optional<int>> chosen_devices(const RankPlaces& places) {
  std::map<std::pair<std::string, std::vector<std::string>>, int> turns;
  std::vector<std::optional<int>> chosen;
  for (std::size_t rank = 0; rank < places.hosts.size(); ++rank) {
    const auto& devices = places.devices[rank];
    chosen.emplace_back();
    if (devices.empty()) continue;
    const int turn = turns[{places.hosts[rank], devices}]++;
    chosen.back() = turn % static_cast<int>(devices.size());
  }
  return chosen;
}

using Pair = std::pair<std::size_t, std::size_t>;

// Returns the first two ranks that have the same device.
std::optional<Pair> first_to_share(const RankPlaces& places,
                                   std::span<const std::optional<int>> chosen) {
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> users;
  for (std::size_t rank = 0; rank < chosen.size(); ++rank) {
    if (!chosen[rank]) continue;
    const std::string_view name = places.devices[rank].at(static_cast<std::size_t>(*chosen[rank]));
    const auto [user, is_first] = users.try_emplace({places.hosts[rank], name}, rank);
    if (!is_first) return Pair(user->second, rank);
  }
  return std::nullopt;
}

[[noreturn]] void refuse_to_share(const RankPlaces& places, const Pair& ranks) {
  const auto& host = places.hosts[ranks.first];
  std::set<std::string_view> devices;
  for (std::size_t rank = 0; rank < places.hosts.size(); ++rank)
    if (places.hosts[rank] == host)
      devices.insert(places.devices[rank].begin(), places.devices[rank].end());
  throw BadInput(formatted(
      "init: ranks {} and {} would share a GPU, because their host has {} and {} for them: "
      "start one rank per GPU, or allow sharing by `lockstep run --share-gpus` or "
      "LOCKSTEP_SHARE_GPUS=1, or compute on the CPU with LOCKSTEP_DEVICE=cpu (lockstep train: "
      "--device cpu)",
      ranks.first, ranks.second, counted(std::ranges::count(places.hosts, host), "rank"),
      counted(std::ssize(devices), "GPU")));
}

}  // namespace

std::string choose_backend(std::string_view asked, std::span<const std::string> hosts,
                           bool by_mpirun, std::span<const std::string_view> names) {
  auto across = across_hosts(by_mpirun, names);
  if (!asked.empty() && asked != "hierarchical") return std::string(asked);
  std::set<std::string_view> different(hosts.begin(), hosts.end());
  if (asked.empty() && different.size() == 1) return "shm";
  if (asked.empty() && different.size() == hosts.size()) return across;
  return "hierarchical:" + across;
}

Choice choose(int rank, const RankPlaces& places, const BackendRequest& request,
              std::string_view device_backend, std::span<const std::string_view> names) {
  const auto devices = chosen_devices(places);
  const auto shared = first_to_share(places, devices);
  if (shared && !request.shares_gpus) refuse_to_share(places, *shared);
  const auto without = std::ranges::find(devices, std::optional<int>()) - devices.begin();
  Choice choice{.device = devices[static_cast<std::size_t>(rank)], .backend = {}, .reason = {}};
  if (!request.backend.empty())
    choice.reason = "as asked for";
  else if (without < std::ssize(devices))
    choice.reason = formatted("rank {} has no GPU", without);
  else if (shared)
    choice.reason = formatted("ranks {} and {} share a GPU", shared->first, shared->second);
  else if (device_backend.empty())
    choice.reason = "this build has no backend for GPUs";
  else
    return {.device = choice.device,
            .backend = std::string(device_backend),
            .reason = "each rank has a GPU of its own"};
  choice.backend = choose_backend(request.backend, places.hosts, request.by_mpirun, names);
  return choice;
}

namespace {

std::atomic<c10::Device>& chosen_device() {
  static std::atomic<c10::Device> device{c10::Device(c10::kCPU)};
  return device;
}

std::optional<c10::Device> parsed(std::string_view text) {
  try {
    return c10::Device(std::string(text));
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// "cpu, cuda or cuda:0 to cuda:3".
std::string expected_of(const Devices& seen) {
  if (seen.indices.empty()) return "cpu, because this process sees no GPU";
  const std::string type = c10::DeviceTypeName(seen.type, /*lower_case=*/true);
  return formatted("cpu, {} or {}:0 to {}:{}", type, type, type, seen.indices.size() - 1);
}

}  // namespace

c10::Device device() { return chosen_device(); }

void use_device(c10::Device device) {
  make_current(device);
  chosen_device() = device;
}

Devices visible_devices() {
  Devices seen;
  const int count = accelerator_count();
  if (count == 0) return seen;
  seen.type = accelerator().value();
  for (int index = 0; index < count; ++index)
    seen.indices.push_back(static_cast<c10::DeviceIndex>(index));
  if (seen.type == c10::kCUDA) seen.names = c10d_backend::gpu_names();
  if (seen.names.empty())
    seen.names = device_names(count, environment::text("CUDA_VISIBLE_DEVICES").value_or(""));
  return seen;
}

std::vector<std::string> device_names(int count, std::string_view visible) {
  std::vector<std::string> names = rank_env::listed_gpus(visible);
  for (int index = static_cast<int>(names.size()); index < count; ++index)
    names.push_back(std::to_string(index));
  names.resize(count);
  return names;
}

bool is_cpu(std::string_view device) { return device == "cpu" || device == "cpu:0"; }

Devices usable_devices(const Devices& seen, std::string_view wanted, std::string_view source) {
  if (wanted.empty()) return seen;
  if (is_cpu(wanted)) return {};
  const auto device = parsed(wanted);
  // c10 truncates the index to 8 bits: cuda:256 would become cuda:0.
  const bool is_exact = device && device->str() == wanted;
  const int count = static_cast<int>(seen.indices.size());
  if (!is_exact || count == 0 || device->type() != seen.type || device->index() >= count)
    throw BadInput(formatted("{}: expected {}; found '{}'", source, expected_of(seen), wanted));
  if (!device->has_index()) return seen;
  return {
      .type = seen.type, .indices = {device->index()}, .names = {seen.names.at(device->index())}};
}

}  // namespace lockstep
