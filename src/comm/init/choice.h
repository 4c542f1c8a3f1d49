// Which engine a group gets that was not asked for one: by where its ranks are.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// `hosts` names the host of each rank; `names` are the engines of this build. One host: shm.
// Several with one rank each: gloo, or mpi where only mpirun connects them (`by_mpirun`) or gloo is
// not there. Several ranks on some: hierarchical over that. `asked` as far as it says; a plain
// "hierarchical" is completed: "hierarchical:gloo".
[[nodiscard]] std::string choose_backend(std::string_view asked, std::span<const std::string> hosts,
                                         bool by_mpirun, std::span<const std::string_view> names);

}  // namespace lockstep
