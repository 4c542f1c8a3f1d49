// A linear map over the ranks of a group as an autograd function. Its backward is the conjugate
// map, and the conjugate's backward is the map, so derivatives of any order work.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

namespace lockstep::functional {

// The call site and the options of the group's calls; kept for backward().
struct Site {
  Site(std::string_view name, Group group, const CallOptions& options, Group::Where where);

  // Returns true if a call with this operand is recorded. The same on all ranks: it is part of the
  // tag.
  [[nodiscard]] static bool records(const at::Tensor& input);
  [[nodiscard]] Site of_backward() const;

  Group group;
  std::string name;  // the user's tag, else the function's name
  bool is_tagged;    // the user gave the tag
  std::optional<Duration> timeout;
  Group::Where where;
};

// The arguments that a map passes to the group's call. Lives as long as that call.
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

}  // namespace lockstep::functional
