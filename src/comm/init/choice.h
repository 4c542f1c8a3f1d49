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

// `hosts` names the host of each rank; `names` are the engines of this build. One host: shm.
// Several with one rank each: gloo, or mpi where only mpirun connects them (`by_mpirun`) or gloo is
// not there. Several ranks on some: hierarchical over that. `asked` as far as it says; a plain
// "hierarchical" is completed: "hierarchical:gloo".
[[nodiscard]] std::string choose_backend(std::string_view asked, std::span<const std::string> hosts,
                                         bool by_mpirun, std::span<const std::string_view> names);

// The hosts and devices of all ranks. After the handshake all ranks know them, so all choose the
// same.
struct RankPlaces {
  std::span<const std::string> hosts;                 // of each rank
  std::span<const std::vector<std::string>> devices;  // names of those that each rank may use
};

struct Wishes {
  std::string_view backend = {};  // empty: to be chosen
  bool shares_gpus = false;       // ranks may share a device
  bool by_mpirun = false;         // as for choose_backend()
};

struct Choice {
  std::optional<int> device;  // its place in the list of this rank; nothing: the CPU
  std::string backend;
  std::string reason;  // for the log; begins in lower case
};

// Ranks of a host with equal lists of devices take turns: the k-th rank gets device k, modulo the
// number of devices. `device_backend` is the backend for groups in which each rank has a device; it
// may be empty. It is chosen if no two ranks share a device and no rank has the CPU. All other
// groups go through host memory (choose_backend()). Throws BadInput if two ranks would share a
// device and sharing is not allowed.
[[nodiscard]] Choice choose(int rank, const RankPlaces& places, const Wishes& wishes,
                            std::string_view device_backend,
                            std::span<const std::string_view> names);

// Devices of one type, as one rank sees them.
struct Devices {
  c10::DeviceType type = c10::kCPU;
  std::vector<c10::DeviceIndex> indices;
  // One per index. Two ranks of a host that give the same name mean the same device.
  std::vector<std::string> names;
};

// Every device that this process sees; none on a host without an accelerator.
[[nodiscard]] Devices visible_devices();

// Names of `count` devices whose identity is not known: the entries of CUDA_VISIBLE_DEVICES, which
// number the devices of the host, else their numbers in this process.
[[nodiscard]] std::vector<std::string> device_names(int count, std::string_view visible);

// The part of `seen` that `wanted` allows: "" all, "cpu" none, "cuda" all, "cuda:1" that one.
// BadInput begins with `source`, the name of the variable or option.
[[nodiscard]] Devices usable_devices(const Devices& seen, std::string_view wanted,
                                     std::string_view source);

// Makes `device` the result of device(), and the current device of the calling thread.
void use_device(c10::Device device);

}  // namespace lockstep
