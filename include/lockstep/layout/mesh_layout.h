// MeshLayout: how rank numbers and coordinates on named axes belong together. Pure arithmetic.
//
//   axes pp=2, dp=3         dp 0   dp 1   dp 2
//                    pp 0   rank 0 rank 1 rank 2       the last axis counts fastest, so that its
//                    pp 1   rank 3 rank 4 rank 5       ranks are neighbours (one host, if possible)
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

struct MeshAxis {
  std::string name;
  int size = 1;  // -1, for one axis at most: what the others leave of the ranks
  bool operator==(const MeshAxis&) const = default;
};

class MeshLayout {
 public:
  // InvalidArgument, which names the axis: no axis, a name that is empty, comes twice or has other
  // characters than letters, digits and '_', a size below 1, a second -1, or a product that is not
  // `ranks`.
  MeshLayout(std::vector<MeshAxis> axes, int ranks);

  [[nodiscard]] const std::vector<MeshAxis>& axes() const { return axes_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  // The place of an axis in axes(); std::nullopt if it is absent.
  [[nodiscard]] std::optional<int> find(std::string_view axis) const;
  // The same; InvalidArgument, which lists the axes, if it is absent.
  [[nodiscard]] int axis(std::string_view name) const;
  // An absent axis has size 1.
  [[nodiscard]] int size(std::string_view axis) const;

  // One coordinate an axis, and back.
  [[nodiscard]] std::vector<int> coordinates(int rank) const;
  [[nodiscard]] int rank_at(std::span<const int> coordinates) const;

  // The ranks that differ from `rank` on `axes` only, itself included, numbered by those axes in
  // the order given, the last one fastest. InvalidArgument when an axis comes twice.
  [[nodiscard]] std::vector<int> peers(int rank, std::span<const int> axes) const;

  // "pp=2, dp=3"
  [[nodiscard]] std::string describe() const;
  // The same and a line for each row of ranks.
  [[nodiscard]] std::string picture() const;

 private:
  std::vector<MeshAxis> axes_;
  int ranks_ = 1;
};

// "dp=2,tp=-1", as options and configuration files have it. BadInput says what was found instead.
[[nodiscard]] std::vector<MeshAxis> parse_axes(std::string_view text);

}  // namespace lockstep

#pragma GCC visibility pop
