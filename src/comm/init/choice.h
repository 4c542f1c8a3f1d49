// The device of each rank and the backend of their group: pure functions of where the ranks are.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace lockstep
