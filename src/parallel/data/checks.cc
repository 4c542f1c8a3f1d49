#include "parallel/data/checks.h"

#include "base/check.h"

namespace lockstep::data_parallel {

void check_options(const DataParallelOptions& options) {
  check(options.bucket_bytes >= 1 && options.first_bucket_bytes >= 1 && options.in_place_bytes >= 1,
        "DistributedDataParallel: bucket sizes must be positive, found {}, {} and {} bytes",
        options.bucket_bytes, options.first_bucket_bytes, options.in_place_bytes);
}

std::vector<std::string> lines_of(const DataParallelOptions& options) {
  std::vector<std::string> lines = {
      formatted("option bucket_bytes = {}", options.bucket_bytes),
      formatted("option first_bucket_bytes = {}", options.first_bucket_bytes),
      formatted("option in_place_bytes = {}", options.in_place_bytes),
      formatted("option find_unused_parameters = {}", options.find_unused_parameters),
      formatted("option static_graph = {}", options.static_graph),
      formatted("option broadcast_buffers = {}", options.broadcast_buffers)};
  if (options.hook) lines.push_back(formatted("option hook = {}", options.hook->describe()));
  for (const std::string& pattern : options.ignored)
    lines.push_back(formatted("option ignored {}", pattern));
  return lines;
}

}  // namespace lockstep::data_parallel
