// PseudoGradientAverage: the average over ranks of one flat tensor, as DiLoCo sends it.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/data/diloco.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::data_parallel {

inline constexpr std::int64_t int8_block = 1024;

// n numbers: n bytes of multiples, and then a float32 for each block. Not finite where a number is
// not.
[[nodiscard]] at::Tensor encode_int8(const at::Tensor& values);
// Back: n numbers in float32.
[[nodiscard]] at::Tensor decode_int8(const at::Tensor& bytes, std::int64_t n);

// Where averages are made.
struct AveragingGroups {
  Group all;
  // Of int8: this host's ranks, which share memory, and the ranks at this one's place on each host.
  // Where hosts have different numbers of ranks, or the ranks share one: this rank, and all.
  Group inside, across;

  // What this rank has given to calls of these groups.
  [[nodiscard]] std::int64_t bytes_given() const;
};
// Collective.
[[nodiscard]] AveragingGroups averaging_groups(const Group& all, PseudoGradients format);

// In int8 each host's ranks average their numbers in the dtype that these have, each rank a part of
// them. Across hosts the average of a part is a reduce_scatter and an all_gather: each rank gets
// every rank's numbers of its share, whole blocks, in int8, adds them in float32 in the order of
// ranks, divides, and gives the result to all in int8. So all ranks have the same bits, on every
// engine.
class PseudoGradientAverage {
 public:
  PseudoGradientAverage() = default;
  // Posts; in int8 blocks for the ranks of this host. `values`: one dimension, this rank's; belongs
  // to this object.
  PseudoGradientAverage(const AveragingGroups& groups, at::Tensor values, PseudoGradients format,
                        std::string tag, std::optional<Duration> timeout);

  // Of int8: blocks for the first exchange and posts the second one, once; then, and of float32,
  // does nothing. Every rank makes the call at the same place among its collectives.
  void advance();
  // Blocks, once; does advance() first. After an exception nothing may be asked of this object.
  [[nodiscard]] at::Tensor average();

 private:
  [[nodiscard]] CallOptions call() const { return {.tag = tag_, .timeout = timeout_}; }

  std::optional<AveragingGroups> groups_;
  at::Tensor values_;
  std::string tag_;
  std::optional<Duration> timeout_;
  // Of int8: the numbers of the parts of this host's ranks, and this rank's part; the numbers of
  // each share of it, and the bytes that they take.
  std::vector<std::int64_t> parts_, shares_, bytes_;
  at::Tensor part_;
  at::Tensor received_;  // in the first exchange: every rank's bytes of this rank's share
  at::Tensor gathered_;  // in the second one: the averages of all shares
  Work work_;
};

}  // namespace lockstep::data_parallel
