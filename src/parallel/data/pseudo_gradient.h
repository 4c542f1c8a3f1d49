// PseudoGradientAverage: the average over ranks of one flat tensor, in DiLoCo's communication
// format.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/data/diloco.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::data_parallel {

inline constexpr std::int64_t int8_block = 1024;

// Encodes n numbers as n bytes of multiples, followed by one float32 per block. A non-finite number
// makes its block non-finite.
[[nodiscard]] at::Tensor encode_int8(const at::Tensor& values);
// Decodes n numbers to float32.
[[nodiscard]] at::Tensor decode_int8(const at::Tensor& bytes, std::int64_t n);

// The groups that compute averages.
struct AveragingGroups {
  Group all;
  // For int8: `inside` has this host's ranks, which share memory; `across` has the ranks with this
  // rank's place on each host. If hosts have different numbers of ranks, or there is only one host,
  // `inside` has only this rank, and `across` all ranks.
  Group inside, across;

  // Returns the bytes that this rank has sent in these groups (GroupTraffic).
  [[nodiscard]] std::int64_t bytes_sent() const;
};
// Collective.
[[nodiscard]] AveragingGroups averaging_groups(const Group& all, PseudoGradients format);

// With int8, the ranks of a host first average in the original dtype; each rank averages a part of
// the numbers. Between hosts, a part is averaged by a reduce_scatter and an all_gather in int8:
// each rank receives all ranks' numbers of its share (whole blocks), adds them in float32 in rank
// order, divides, and sends the result to all ranks. So all ranks have bit-identical results, on
// every backend.
class PseudoGradientAverage {
 public:
  PseudoGradientAverage() = default;
  // Posts the average; with int8, first blocks for the ranks of this host. `values` are this
  // rank's, in one dimension; this object owns them from then on.
  PseudoGradientAverage(const AveragingGroups& groups, at::Tensor values, PseudoGradients format,
                        std::string tag, std::optional<Duration> timeout);

  // With int8, the first call blocks for the first exchange and posts the second one; later calls,
  // and calls with float32, do nothing. Every rank must call it at the same place among its
  // collectives.
  void advance();
  // Calls advance(), blocks, and returns the average. May be called once. The object must not be
  // used after an exception.
  [[nodiscard]] at::Tensor average();

 private:
  [[nodiscard]] CallOptions call() const { return {.tag = tag_, .timeout = timeout_}; }

  std::optional<AveragingGroups> groups_;
  at::Tensor values_;
  std::string tag_;
  std::optional<Duration> timeout_;
  // With int8: the sizes of the parts of this host's ranks, then for this rank's part the sizes of
  // its shares and their bytes.
  std::vector<std::int64_t> parts_, shares_, bytes_;
  at::Tensor part_;
  at::Tensor received_;  // in the first exchange: every rank's bytes of this rank's share
  at::Tensor gathered_;  // in the second exchange: the averages of all shares
  Work work_;
};

// Fragments of a model: parameters that DiLoCo communicates together.
struct Fragment {
  std::vector<NamedParameter> parameters;
  at::Tensor outer, momentum;  // flat; momentum is undefined before the first update
  std::int64_t first_step = 0;
  std::optional<std::int64_t> posted;  // the step at which it was posted; none: not in flight
  PseudoGradientAverage average;
  at::Tensor arrived;  // the average, if it was awaited before its time
};

// Divides the trained parameters into runs with about the same number of elements. Throws
// InvalidArgument for parameters that DiLoCo cannot train.
[[nodiscard]] std::vector<std::vector<NamedParameter>> divide(
    const std::vector<NamedParameter>& parameters, int fragments);

// Returns a copy of the values in one dimension.
[[nodiscard]] at::Tensor flat_of(const std::vector<NamedParameter>& parameters);

// Calls use(parameter, its part of `flat`).
void for_parts(const Fragment& fragment, const at::Tensor& flat, const auto& use) {
  std::int64_t begin = 0;
  for (const NamedParameter& parameter : fragment.parameters) {
    std::int64_t count = parameter.tensor.numel();
    use(parameter, flat.narrow(0, begin, count).view(parameter.tensor.sizes()));
    begin += count;
  }
}

}  // namespace lockstep::data_parallel
