#include "parallel/tensor/tensor_state.h"

#include "base/check.h"
#include "base/log.h"
#include "comm/init/backends.h"
#include "global/mesh_context.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/tensor/tensor_parallel_parameter.h"

#include <lockstep/global/tensor.h>

#include <exception>
#include <map>
#include <mutex>
#include <utility>

namespace lockstep {

using tensor_parallel::PlannedParameter;

namespace {

// Along `cp`, a gradient is a sum, which is computed only when all terms are complete.
Placements table_on(const Mesh& mesh, Placement placement) {
  Placements all = tensor_parallel::placements_on(mesh, placement);
  for (std::size_t axis = 0; axis < all.size(); ++axis)
    if (mesh.axes()[axis].name == "cp") all[axis] = Partial();
  return all;
}

// 0 without an axis `cp`.
int context_ranks_of(const Mesh& mesh) { return mesh.layout().find("cp") ? mesh.size("cp") : 0; }

// For ring attention along `cp`, in which each rank sends to the next one. Collective.
void connect_ring(const Mesh& mesh) {
  const int ranks = context_ranks_of(mesh);
  Directions directions;
  for (int rank = 0; rank < ranks; ++rank) directions.insert({rank, (rank + 1) % ranks});
  if (ranks > 1) connect(global::MeshContext::of(mesh).group(mesh.layout().axis("cp")), directions);
}

}  // namespace

TensorParallelState::TensorParallelState(std::shared_ptr<torch::nn::Module> module,
                                         const Mesh& tensors, const TensorCut& how, const Mesh& all)
    : CompositeState(all),
      module_(std::move(module)),
      kept_group_(std::make_shared<Group>(tensors["tp"])),
      tensors_(tensors) {
  part_all(how);
  hold_parts();
  aborts(group_);
  aborts(tensors_);
  aborts(all);
}

TensorParallelState::~TensorParallelState() {
  if (is_trained_) return;
  try {
    (void)take_parts();
    is_divided_ = false;
    handle_ = {};
    attach_all();
    TensorParallelState::detach();  // otherwise gradients would go to unused parts
  } catch (const std::exception& error) {
    log::warning("a module that was cut and not trained: {}", error.what());
  } catch (...) {
    log::warning("a module that was cut and not trained: an exception that is no std::exception");
  }
}

void TensorParallelState::part_all(const TensorCut& how) {
  const modules::ModuleTensors tensors = modules::tensors_of(*module_);
  const std::vector<PlannedParameter> planned =
      tensor_parallel::planned(how.plan, *module_, group_.size());
  set_hints(how, planned);
  const auto ranks = std::make_shared<ShardGroup>(kept_group_);
  for (const auto& [parameter, placement, pattern] : planned)
    sharded_.push_back(tensor_parallel::shard_parameter(
        {.name = parameter.name, .tensor = parameter.tensor, .aliases = parameter.aliases},
        placement, tensors_, ranks));
  for (const auto& [name, tensor] : tensors.buffers)
    sharded_.push_back(tensor_parallel::shard_parameter(
        {.name = name, .tensor = tensor, .kind = PartKind::buffer}, Replicate(), tensors_, ranks));
  for (std::size_t i = 0; i < sharded_.size(); ++i) {
    place_.emplace(sharded_[i].tensor.unsafeGetTensorImpl(), i);
    for (std::size_t leaf = 0; leaf < sharded_[i].parts.size(); ++leaf)
      for (std::string& name : tensor_parallel::names_of_leaf(sharded_[i].parts[leaf], leaf))
        number_.emplace(std::move(name), i);
  }
}

// Sets the placements that operations on the mesh's tensors prefer.
void TensorParallelState::set_hints(const TensorCut& how,
                                    const std::vector<PlannedParameter>& planned) {
  set_global_options(tensors_, {.replicate_plain = true});
  global::PlacementHints& hints = global::MeshContext::of(tensors_).hints;
  if (how.sequence_parallel) {
    hints.sequence_dim = how.sequence_dim;
    hints.sequence_axis = tensors_.layout().axis("tp");
  }
  if (how.attention_by_heads) {
    hints.heads_axis = tensors_.layout().axis("cp");
  } else {
    connect_ring(tensors_);
  }
  for (const auto& [parameter, placement, pattern] : planned)
    if (placement.is_shard() && parameter.tensor.dim() == 2 &&
        how.plan[static_cast<std::size_t>(pattern)].second.kind() == TensorStyle::Kind::vocabulary)
      hints.tables.push_back({parameter.tensor.sizes().vec(), table_on(tensors_, placement)});
}

// From here on, only the leaves hold the memory of the parts, so a handle that shards the parts
// frees the unsharded memory immediately.
void TensorParallelState::hold_parts() {
  std::vector<Part> all;
  for (const TensorParallelParameter& one : sharded_)
    all.insert(all.end(), one.parts.begin(), one.parts.end());
  parts_ = tensor_parallel::module_of_shards(all);
  for (TensorParallelParameter& one : sharded_)
    if (!one.is_buffer()) held_.emplace_back(one);
}

void TensorParallelState::train(Handle of_parts) {
  handle_ = std::move(of_parts);
  const std::string apart = take_parts();
  check(apart.empty(),
        "parallelize: {}: fully_shard() split this rank's parts over several units; list its "
        "module in .units",
        apart);
  if (handle_.is_attached()) {
    add_child(handle_);
    adopt(of(handle_));
    for (TensorParallelParameter& one : sharded_) one.context_ranks = context_ranks_of(tensors_);
  }
  attach_all();
  is_trained_ = true;
}

// Call once, after the handle has moved the leaves: finds the new memory of each local. Returns the
// name of a tensor whose leaves are no longer contiguous, or an empty text.
std::string TensorParallelState::take_parts() {
  std::string apart;
  std::size_t next = 0;
  const auto held = std::exchange(held_, {});
  for (TensorParallelParameter& one : sharded_) {
    if (one.is_buffer() || held.empty()) continue;
    if (!held[next++].end(one)) apart = one.name();
    is_divided_ = is_divided_ || one.is_divided;
  }
  return apart;
}

void TensorParallelState::attach_all() {
  std::map<std::size_t, std::vector<at::Tensor>> divided;  // what holds gradients beside the leaves
  if (is_divided_)
    for (const Part& part : handle_.named_parameters())
      divided[number_.at(part.name)].push_back(part.tensor);
  for (std::size_t i = 0; i < sharded_.size(); ++i) {
    attach(sharded_[i], tensors_, divided[i]);
    connect(sharded_[i], marks_, divided[i]);
  }
  watch_ = std::make_shared<const modules::ModuleWatch>(*module_, std::vector<std::string>(),
                                                        "parallelize() was called",
                                                        /*with_buffers=*/true);
  marks_->watch(watch_);
  start_clock();
}

void TensorParallelState::start_clock() {
  clock_ = std::make_shared<tensor_parallel::BackwardClock>(
      [this] { return seconds_waited(); }, [this] { return requires_gradient_sync(); });
  marks_->on_gradient([clock = std::weak_ptr(clock_)] {
    if (const auto own = clock.lock()) own->on_gradient();
  });
}

void TensorParallelState::detach() {
  CompositeState::detach();
  handle_ = {};
  clock_.reset();
  watch_.reset();
  marks_->clear();
  for (TensorParallelParameter& sharded : sharded_) disconnect(sharded);
}

// Renames the parts of handle_, which are parts of leaves, to the names of the module's tensors.
std::vector<Part> TensorParallelState::own_parts(std::vector<Part> parts) const {
  for (Part& part : parts) {
    const TensorParallelParameter& one = sharded_[number_.at(part.name)];
    part.name = one.name();
    part.aliases = one.parts.front().aliases;
  }
  return parts;
}

// Like own_parts(), for a state dict: each part gets all names that its tensor has in the state
// dict.
std::vector<Part> TensorParallelState::own_state(std::vector<Part> parts) const {
  std::unordered_map<const void*, NamedParameter> entries;
  for (NamedParameter& entry : modules::state_entries(*module_))
    entries.emplace(entry.tensor.unsafeGetTensorImpl(), std::move(entry));
  for (Part& part : parts) {
    const TensorParallelParameter& one = sharded_[number_.at(part.name)];
    const NamedParameter& entry = entries.at(one.tensor.unsafeGetTensorImpl());
    part.name = entry.name;
    part.aliases = entry.aliases;
  }
  return parts;
}

std::vector<Part> TensorParallelState::named_parameters() const {
  if (is_divided_) return own_parts(CompositeState::named_parameters());
  std::vector<Part> list;
  for (const TensorParallelParameter& sharded : sharded_)
    if (!sharded.is_buffer()) list.insert(list.end(), sharded.parts.begin(), sharded.parts.end());
  return list;
}

void TensorParallelState::zero_grad(bool set_to_none) {
  marks_->clear();
  clock_->zero_grad();
  if (has_children()) return CompositeState::zero_grad(set_to_none);
  for (const TensorParallelParameter& sharded : sharded_)
    for (const Part& part : sharded.parts) parallel::zero_gradient(part.tensor, set_to_none);
}

const TensorParallelState::TensorParallelParameter& TensorParallelState::sharded(
    const at::Tensor& tensor) const {
  const auto found = place_.find(tensor.unsafeGetTensorImpl());
  check(found != place_.end(),
        "a parallelized module: expected the tensors that it had, found another; make the handle "
        "after changing the module");
  return sharded_[found->second];
}

std::vector<Part> TensorParallelState::state_parts() {
  if (is_divided_) return own_state(CompositeState::state_parts());
  std::vector<Part> list;
  for (const NamedParameter& entry : modules::state_entries(*module_)) {
    const TensorParallelParameter& one = sharded(entry.tensor);
    for (std::size_t i = 0; i < one.parts.size(); ++i) {
      Part& part = list.emplace_back(one.parts[i]);
      part.name = entry.name;
      part.tensor = one.values(i).detach();
      part.aliases = entry.aliases;
    }
  }
  return list;
}

HandleMemory TensorParallelState::memory() const {
  return is_divided_ ? CompositeState::memory() : parallel::memory_of(named_parameters());
}

double TensorParallelState::seconds_waited() const {
  global::MeshContext& context = global::MeshContext::of(tensors_);
  std::lock_guard lock(context.traffic_mutex);
  return context.seconds_waited + CompositeState::seconds_waited();
}

}  // namespace lockstep
