#include <lockstep/train/task.h>

#include <lockstep/train/epoch_batches.h>

#include "base/check.h"
#include "base/fingerprint.h"
#include "checkpoint/checksum.h"

#include <algorithm>
#include <numeric>

namespace lockstep::train {

void Task::load_validation(const Options& options, const Group& group, const std::string& data) {
  check_input(data.empty(), "{}: the task {} measures no other data than its own", data, name());
  load(options, group);
}

std::string Task::data_fingerprint() {
  std::int64_t samples = validation_samples();
  std::vector<std::size_t> first(std::min(samples, evaluation_rows()));
  std::iota(first.begin(), first.end(), std::size_t{0});
  Batch batch = validation(first);
  return formatted("{} samples, the first ones of {}", samples,
                   fingerprint_of_tensors({batch.data, batch.target}));
}

double Task::weight_of(const Batch& batch) const { return static_cast<double>(batch.data.size(0)); }

Totals Task::measure(const Batch& batch) {
  const double weight = weight_of(batch);
  return {.loss = loss(batch).item<double>() * weight, .targets = weight};
}

std::string fingerprint_of_tensors(std::initializer_list<at::Tensor> tensors) {
  std::int64_t elements = 0;
  std::uint32_t checksum = 0;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor dense = tensor.contiguous();
    elements += dense.numel();
    checksum = checkpoint::crc32_of(
        {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()}, checksum);
  }
  return formatted("{} elements, crc32 {:08x}", elements, checksum);
}

std::uint64_t stream_seed(std::int64_t seed, std::int64_t stream) {
  return mix_bits(static_cast<std::uint64_t>(seed) * 0x9e3779b97f4a7c15u +
                  static_cast<std::uint64_t>(stream));
}

void detail::check_samples(std::optional<std::size_t> samples, int ranks) {
  check_input(samples.has_value(), "expected a training set that knows its size, found none");
  check_input(*samples >= static_cast<std::size_t>(ranks),
              "expected a training sample for each rank, found {} for {}",
              counted(static_cast<std::int64_t>(*samples), "sample"), counted(ranks, "rank"));
}

}  // namespace lockstep::train
