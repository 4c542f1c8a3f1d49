#include <lockstep/layout/mesh_layout.h>

#include "base/check.h"
#include "base/text.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep {
namespace {

bool is_name(std::string_view text) {
  auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && std::ranges::all_of(text, fits);
}

void check_axes(const std::vector<MeshAxis>& axes) {
  check(!axes.empty(), "mesh: expected an axis, such as {{\"dp\", 2}}");
  int inferred = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto& [name, size] = axes[i];
    check(is_name(name), "mesh: expected an axis name of letters, digits and '_', found '{}'",
          name);
    for (std::size_t j = 0; j < i; ++j)
      check(axes[j].name != name, "mesh: axis {} is given twice", name);
    check(size >= 1 || size == -1,
          "mesh: axis {} has size {}, expected at least 1, or -1 for the rest", name, size);
    if (size == -1) ++inferred;
  }
  check(inferred <= 1, "mesh: one axis may have size -1, found {}", inferred);
}

std::string sizes_of(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> parts;
  for (const auto& [name, size] : axes) parts.push_back(formatted("{}={}", name, size));
  return join(parts);
}

}  // namespace

MeshLayout::MeshLayout(std::vector<MeshAxis> axes, int ranks)
    : axes_(std::move(axes)), ranks_(ranks) {
  check(ranks >= 1, "mesh: expected at least one rank, found {}", ranks);
  check_axes(axes_);
  std::int64_t product = 1;
  MeshAxis* rest = nullptr;
  for (MeshAxis& axis : axes_) {
    if (axis.size == -1) {
      rest = &axis;
    } else {
      product = std::min<std::int64_t>(product * axis.size, std::numeric_limits<int>::max());
    }
  }
  if (rest != nullptr) {
    check(ranks % product == 0, "mesh {}: the number of ranks, {}, must be divisible by {}",
          sizes_of(axes_), ranks, product);
    rest->size = static_cast<int>(ranks / product);
    return;
  }
  check(product == ranks,
        "mesh {}: the product of the sizes, {}, must equal the number of ranks, {}",
        sizes_of(axes_), product, ranks);
}

std::optional<int> MeshLayout::find(std::string_view axis) const {
  const auto found = std::ranges::find(axes_, axis, &MeshAxis::name);
  if (found == axes_.end()) return std::nullopt;
  return static_cast<int>(found - axes_.begin());
}

int MeshLayout::axis(std::string_view name) const {
  if (const auto found = find(name)) return *found;
  std::vector<std::string_view> known;
  for (const MeshAxis& axis : axes_) known.emplace_back(axis.name);
  throw InvalidArgument(formatted("mesh {}: {}", describe(), unknown_name("axis", name, known)));
}

int MeshLayout::size(std::string_view axis) const {
  const auto found = find(axis);
  return found ? axes_[static_cast<std::size_t>(*found)].size : 1;
}

std::vector<int> MeshLayout::coordinates(int rank) const {
  check(rank >= 0 && rank < ranks_, "mesh: rank must be 0..{}, found {}", ranks_ - 1, rank);
  std::vector<int> result(axes_.size());
  for (std::size_t i = axes_.size(); i-- > 0; rank /= axes_[i].size)
    result[i] = rank % axes_[i].size;
  return result;
}

int MeshLayout::rank_at(std::span<const int> coordinates) const {
  check(coordinates.size() == axes_.size(),
        "mesh: expected as many coordinates as axes, {}, found {}", axes_.size(),
        coordinates.size());
  int rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const auto& [name, size] = axes_[i];
    check(coordinates[i] >= 0 && coordinates[i] < size, "mesh: {} must be 0..{}, found {}", name,
          size - 1, coordinates[i]);
    rank = rank * size + coordinates[i];
  }
  return rank;
}

std::vector<int> MeshLayout::peers(int rank, std::span<const int> axes) const {
  std::vector<int> place = coordinates(rank);
  int count = 1;
  for (int axis : axes) {
    check(axis >= 0 && axis < static_cast<int>(axes_.size()), "mesh: there is no axis {}", axis);
    const auto& [name, size] = axes_[static_cast<std::size_t>(axis)];
    check(std::ranges::count(axes, axis) == 1, "mesh: axis {} is asked for twice", name);
    count *= size;
  }
  std::vector<int> result;
  for (int number = 0; number < count; ++number) {
    int rest = number;
    for (std::size_t i = axes.size(); i-- > 0;) {
      auto axis = static_cast<std::size_t>(axes[i]);
      place[axis] = rest % axes_[axis].size;
      rest /= axes_[axis].size;
    }
    result.push_back(rank_at(place));
  }
  return result;
}

std::string MeshLayout::describe() const { return sizes_of(axes_); }

std::string MeshLayout::picture() const {
  std::string text = formatted("mesh {} ({} ranks)", describe(), ranks_);
  int row = axes_.back().size;
  for (int first = 0; first < ranks_; first += row) {
    std::vector<int> place = coordinates(first);
    text += "\n ";
    for (std::size_t i = 0; i + 1 < axes_.size(); ++i)
      text += formatted(" {} {},", axes_[i].name, place[i]);
    text += formatted(
        " {} 0..{}: {}", axes_.back().name, row - 1,
        row == 1 ? formatted("rank {}", first) : formatted("ranks {}..{}", first, first + row - 1));
  }
  return text;
}

std::vector<MeshAxis> parse_axes(std::string_view text) {
  std::vector<MeshAxis> axes;
  for_each_part(text, ',', [&](std::string_view part) {
    auto equals = part.find('=');
    auto size =
        equals == std::string_view::npos ? std::nullopt : parse_integer(part.substr(equals + 1));
    check_input(size && *size >= -1 && *size <= std::numeric_limits<int>::max(),
                "mesh '{}': expected name=size, such as dp=2, found '{}'", text, part);
    axes.push_back({std::string(part.substr(0, equals)), static_cast<int>(*size)});
  });
  return axes;
}

}  // namespace lockstep
