#include <lockstep/mesh/mesh.h>

#include "base/format.h"
#include "base/mutex.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep {

struct Mesh::State {
  State(Group the_group, MeshLayout the_layout)
      : group(std::move(the_group)), layout(std::move(the_layout)) {}

  // Returns the group of the ranks that differ from this rank only on `axes`. Collective over the
  // mesh.
  Group split(std::span<const int> axes) const {
    std::vector<int> ranks = layout.peers(group.rank(), axes);
    if (ranks.size() == 1) return {};
    int color = *std::ranges::min_element(ranks);
    auto key = std::ranges::find(ranks, group.rank()) - ranks.begin();
    return group.split(color, static_cast<int>(key));
  }

  const Group group;
  const MeshLayout layout;
  std::vector<Group> of_axis;
  Mutex mutex;
  std::map<std::vector<std::string>, std::shared_ptr<State>> parts LOCKSTEP_GUARDED_BY(mutex);
  std::shared_ptr<void> attached LOCKSTEP_GUARDED_BY(mutex);
};

std::shared_ptr<Mesh::State> Mesh::make(Group group, std::vector<MeshAxis> axes) {
  auto state = std::make_shared<State>(group, MeshLayout(std::move(axes), group.size()));
  std::string tag = formatted("mesh {}", state->layout.describe());
  group.barrier({.tag = tag}).wait();
  for (int axis = 0; axis < static_cast<int>(state->layout.axes().size()); ++axis)
    state->of_axis.push_back(state->split({&axis, 1}));
  return state;
}

Mesh::Mesh(Group group, std::vector<MeshAxis> axes)
    : state_(make(std::move(group), std::move(axes))) {}

const MeshLayout& Mesh::layout() const { return state_->layout; }
const Group& Mesh::group() const { return state_->group; }

int Mesh::coordinate(std::string_view axis) const {
  const auto found = layout().find(axis);
  return found ? coordinates()[static_cast<std::size_t>(*found)] : 0;
}

std::vector<int> Mesh::coordinates() const { return layout().coordinates(group().rank()); }

Group Mesh::operator[](std::string_view axis) const {
  const auto found = layout().find(axis);
  return found ? state_->of_axis[static_cast<std::size_t>(*found)] : Group();
}

Mesh Mesh::sub_mesh(const std::vector<std::string>& names) const {
  std::vector<int> present;
  std::vector<MeshAxis> chosen;
  for (const std::string& name : names) {
    if (const auto found = layout().find(name)) present.push_back(*found);
    chosen.push_back({name, size(name)});
  }
  if (chosen == axes()) return *this;
  Lock lock(state_->mutex);
  auto found = state_->parts.find(names);
  if (found == state_->parts.end()) {
    // Throws before any call if the names are invalid.
    MeshLayout checked(chosen, static_cast<int>(layout().peers(group().rank(), present).size()));
    Group part = state_->split(present);
    found = state_->parts.emplace(names, make(std::move(part), checked.axes())).first;
  }
  return Mesh(found->second);
}

std::shared_ptr<void> Mesh::attached(const std::function<std::shared_ptr<void>()>& make) const {
  Lock lock(state_->mutex);
  if (!state_->attached) state_->attached = make();
  return state_->attached;
}

}  // namespace lockstep
