#include "global/mesh_context.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "dispatch/key.h"
#include "global/autograd.h"
#include "global/decide.h"

#include <lockstep/base/error.h>

#include <c10/core/TensorOptions.h>

namespace lockstep::global {
namespace {

// Maximum number of specs: more than a training step needs. If shapes keep varying, all are dropped
// at this number.
constexpr std::size_t most_specs = 16384;

std::size_t hash_of(const Spec& spec) {
  std::uint64_t hash = static_cast<std::uint64_t>(spec.dtype);
  auto add = [&](std::uint64_t word) { hash = combine_fingerprints(hash, word); };
  for (Placement one : spec.placements)
    add(static_cast<std::uint64_t>(one.kind()) << 48 | static_cast<std::uint64_t>(one.op()) << 40 |
        static_cast<std::uint64_t>(one.is_zigzag()) << 39 |
        static_cast<std::uint64_t>(one.dim()) << 24 | static_cast<std::uint64_t>(one.parts()));
  for (std::int64_t size : spec.sizes) add(static_cast<std::uint64_t>(size));
  for (std::int64_t stride : spec.strides) add(static_cast<std::uint64_t>(stride));
  return hash;
}

}  // namespace

MeshContext::MeshContext(const Mesh& mesh)
    : all_(mesh.group()),
      name_(mesh.layout().describe()),
      decisions_(std::make_unique<Decisions>()) {
  replace_formulas();
  std::vector<int> coordinates = mesh.coordinates();
  for (std::size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    groups_.push_back(mesh[mesh.axes()[axis].name]);
    place_.push_back({mesh.axes()[axis].size, coordinates[axis]});
  }
}

MeshContext::~MeshContext() = default;

MeshContext& MeshContext::of(const Mesh& mesh) {
  return *static_cast<MeshContext*>(
      mesh.attached([&] { return std::make_shared<MeshContext>(mesh); }).get());
}

Mesh mesh_of_handle(const Mesh& mesh) {
  Mesh own(mesh.group(), mesh.axes());
  MeshContext::of(own).belong_to(MeshContext::of(mesh));
  return own;
}

void MeshContext::end_groups(std::string_view operation, const std::exception& error) {
  auto is = [&]<class Kind>(const Kind*) { return dynamic_cast<const Kind*>(&error) != nullptr; };
  bool is_of_group =
      is(static_cast<const PeerLost*>(nullptr)) || is(static_cast<const Timeout*>(nullptr)) ||
      is(static_cast<const Mismatch*>(nullptr)) || is(static_cast<const Aborted*>(nullptr));
  if (is_of_group) return;
  std::string_view what = error.what();
  std::string reason = formatted("{} on global tensors of mesh {} failed on rank {}: {}", operation,
                                 name_, all_.rank(), what.substr(0, what.find('\n')));
  for (Group& group : groups_)
    if (group.size() > 1) group.abort(reason);
  if (all_.size() > 1) all_.abort(reason);
}

SpecPtr MeshContext::spec(PlacementList placements, at::IntArrayRef sizes, at::IntArrayRef strides,
                          c10::ScalarType dtype, c10::Device device) {
  auto made = c10::make_intrusive<Spec>();
  made->context = this;
  made->placements = std::move(placements);
  made->sizes.assign(sizes.begin(), sizes.end());
  made->strides.assign(strides.begin(), strides.end());
  made->dtype = dtype;
  made->device = device;
  std::size_t hash = hash_of(*made);
  std::lock_guard lock(mutex_);
  auto [first, last] = specs_.equal_range(hash);
  for (auto found = first; found != last; ++found)
    if (found->second->same_as(*made)) return found->second;
  if (specs_.size() >= most_specs) specs_.clear();
  made->keys = c10::DispatchKeySet(c10::computeDispatchKey(dtype, at::kStrided, device))
                   .add(dispatch::key());
  specs_.emplace(hash, made);
  return made;
}

}  // namespace lockstep::global
