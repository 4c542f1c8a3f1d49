// The checks of DistributedDataParallel before anything is changed.
#pragma once

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <string>
#include <vector>

namespace lockstep::data_parallel {

// Not collective. Throws InvalidArgument.
void check_options(const DistributedDataParallelOptions& options);

// Returns the options that must be equal on all ranks, for modules::check_same_lines().
[[nodiscard]] std::vector<std::string> lines_of(const DistributedDataParallelOptions& options);

}  // namespace lockstep::data_parallel
