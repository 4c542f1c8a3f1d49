// The device of each rank and the backend of their group. The choice is a pure function of where
// the ranks are, so all ranks choose the same.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/device.h>

namespace lockstep {

// Returns `asked` if it is not empty; a plain "hierarchical" becomes "hierarchical:gloo" or
// "hierarchical:mpi". Otherwise: shm for one host. Several hosts with one rank each: gloo, or mpi
// if mpirun started the ranks (`by_mpirun`) or this build has no gloo. Several ranks on some hosts:
// hierarchical over gloo or mpi. `hosts`: the host of each rank; `names`: the backends of this
// build.
[[nodiscard]] std::string choose_backend(std::string_view asked, std::span<const std::string> hosts,
                                         bool by_mpirun, std::span<const std::string_view> names);

// The hosts and devices of all ranks. Equal on all ranks after the handshake, so that all ranks
// make the same choice.
struct RankPlaces {
  std::span<const std::string> hosts;                 // of each rank
  std::span<const std::vector<std::string>> devices;  // names of those that each rank may use
};

struct BackendRequest {
  std::string_view backend = {};  // empty: to be chosen
  bool shares_gpus = false;       // ranks may share a device
  bool by_mpirun = false;         // as for choose_backend()
};

struct Choice {
  std::optional<int> device;  // index in this rank's list; std::nullopt: the CPU
  std::string backend;
  std::string reason;  // for the log; begins in lower case
};

// Ranks of a host with equal lists of devices take turns: the k-th rank gets device k, modulo the
// number of devices. `device_backend` is the backend for groups in which each rank has a device; it
// may be empty. It is chosen if every rank has a device and no two ranks share one. Otherwise
// choose_backend() chooses, and data goes through host memory. Throws BadInput if two ranks would
// share a device and sharing is not allowed.
[[nodiscard]] Choice choose(int rank, const RankPlaces& places, const BackendRequest& request,
                            std::string_view device_backend,
                            std::span<const std::string_view> names);

// Devices of one type, as one rank sees them.
struct Devices {
  c10::DeviceType type = c10::kCPU;
  std::vector<c10::DeviceIndex> indices;
  // One name per index. On one host, equal names denote the same device.
  std::vector<std::string> names;
};

// Returns all devices that this process sees; empty on a host without an accelerator.
[[nodiscard]] Devices visible_devices();

// Returns names for `count` devices whose identity is unknown: the entries of `visible`
// (CUDA_VISIBLE_DEVICES), which are device numbers of the host, else the devices' numbers in this
// process.
[[nodiscard]] std::vector<std::string> device_names(int count, std::string_view visible);

// Returns true for the names of the CPU: "cpu" and "cpu:0".
[[nodiscard]] bool is_cpu(std::string_view device);

// Returns the devices of `seen` that `wanted` allows: "" and "cuda" allow all, "cpu" none, "cuda:1"
// one. Throws BadInput for other values; the message begins with `source`, the name of the variable
// or option.
[[nodiscard]] Devices usable_devices(const Devices& seen, std::string_view wanted,
                                     std::string_view source);

// Makes `device` the result of device(), and the current device of the calling thread.
void use_device(c10::Device device);

}  // namespace lockstep
