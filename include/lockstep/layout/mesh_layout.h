// MeshLayout: the mapping between ranks and coordinates on named axes. Pure arithmetic.
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
  int size = 1;  // -1, for at most one axis: the number of ranks divided by the other sizes
  bool operator==(const MeshAxis&) const = default;
};

class MeshLayout {
 public:
  // Throws InvalidArgument, which names the axis, if there is no axis; a name is empty, occurs
  // twice or has characters other than letters, digits and '_'; a size is below 1; a second size is
  // -1; or the product of the sizes is not `ranks`.
  MeshLayout(std::vector<MeshAxis> axes, int ranks);

  [[nodiscard]] const std::vector<MeshAxis>& axes() const { return axes_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  // Returns the index of an axis in axes(); std::nullopt if it is absent.
  [[nodiscard]] std::optional<int> find(std::string_view axis) const;
  // Returns the index; throws InvalidArgument, which lists the axes, if the axis is absent.
  [[nodiscard]] int axis(std::string_view name) const;
  // An absent axis has size 1.
  [[nodiscard]] int size(std::string_view axis) const;

  // One coordinate per axis, and the inverse mapping.
  [[nodiscard]] std::vector<int> coordinates(int rank) const;
  [[nodiscard]] int rank_at(std::span<const int> coordinates) const;

  // Returns the ranks that differ from `rank` on `axes` only, including `rank`, numbered by those
  // axes in the given order, the last one fastest. Throws InvalidArgument if an axis occurs twice.
  [[nodiscard]] std::vector<int> peers(int rank, std::span<const int> axes) const;

  // "pp=2, dp=3"
  [[nodiscard]] std::string describe() const;
  // Returns describe() and one line per row of ranks.
  [[nodiscard]] std::string picture() const;

 private:
  std::vector<MeshAxis> axes_;
  int ranks_ = 1;
};

// Parses "dp=2,tp=-1", the syntax of options and configuration files. Throws BadInput, which quotes
// the invalid text.
[[nodiscard]] std::vector<MeshAxis> parse_axes(std::string_view text);

}  // namespace lockstep

#pragma GCC visibility pop
