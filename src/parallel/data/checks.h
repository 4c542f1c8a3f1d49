// What DistributedDataParallel checks before anything is changed.
#pragma once

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <string>
#include <vector>

namespace lockstep::data_parallel {

// Local: InvalidArgument.
void check_options(const DataParallelOptions& options);

// Options that all ranks must agree on, for modules::check_same_lines().
[[nodiscard]] std::vector<std::string> lines_of(const DataParallelOptions& options);

}  // namespace lockstep::data_parallel
