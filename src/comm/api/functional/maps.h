// The differentiable collectives are built from these maps, which do not use autograd. Each map
// makes a new contiguous tensor. Dims must not be negative; sizes must have been checked.
#pragma once

#include <lockstep/comm/call.h>
#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::functional {

// The call site and the options of the group's calls; kept for backward().
struct Site {
  Site(std::string_view name, Group group, const CallOptions& options, Group::Where where);

  // Returns true if a call with this operand is recorded for backward. Part of the tag, so that
  // ranks that differ get a Mismatch.
  [[nodiscard]] static bool records(const at::Tensor& input);
  [[nodiscard]] Site of_backward() const;

  Group group;
  std::string name;  // the user's tag, else the function's name
  bool is_tagged;    // the user gave the tag
  std::optional<Duration> timeout;
  Group::Where where;
};

// The arguments that a map passes to the group's call; valid during the call.
class Passing {
 public:
  Passing(const Site& site, bool recorded);
  [[nodiscard]] CallOptions options() const { return {.tag = tag_, .timeout = site_.timeout}; }
  [[nodiscard]] Group& group() { return group_; }
  [[nodiscard]] Group::Where where() const { return site_.where; }

 private:
  const Site& site_;
  Group group_;
  std::string tag_;
};

// Blocks until the result is complete; runs without grad mode.
using Map = std::function<at::Tensor(Passing&, const at::Tensor&)>;

// Returns map(input), differentiable by `conjugate`.
[[nodiscard]] at::Tensor perform(const at::Tensor& input, const Site& site, Map map, Map conjugate);

// One length per rank along a dim; empty: all equal.
using Sizes = std::vector<std::int64_t>;

[[nodiscard]] Map identity();
[[nodiscard]] Map combine(Op op);
[[nodiscard]] Map send_from(int root);
[[nodiscard]] Map sum_at(int root);
// If `divide`, divides the result by the number of ranks.
[[nodiscard]] Map join(std::int64_t dim, Sizes sizes, bool divide = false);
[[nodiscard]] Map cut(std::int64_t dim, Sizes sizes, Op op);
[[nodiscard]] Map exchange(std::int64_t split_dim, std::int64_t join_dim);
[[nodiscard]] Map exchange(std::int64_t dim, Sizes output_sizes, Sizes input_sizes);

}  // namespace lockstep::functional
