#include "dispatch/recompute/activation_checkpoint_state.h"

#include "comm/backend/accelerator.h"
#include "dispatch/deferred_init/recorded_call.h"
#include "dispatch/key.h"
#include "dispatch/recompute/checkpointed_region.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <string_view>

namespace lockstep::dispatch {

HostCopies::HostCopies(const c10::Stream& stream)
    : stream_(stream), origin_(current_stream(stream.device())) {
  order(origin_, stream_);
}

at::Tensor HostCopies::to_host(const at::Tensor& device) {
  const bool pins = pins_host_memory(device.device().type());
  at::Tensor host = at::empty_like(device, device.options().device(at::kCPU).pinned_memory(pins));
  const c10::StreamGuard guard(stream_);
  host.copy_(device, /*non_blocking=*/true);
  memory_.push_back(device);
  return host;
}

at::Tensor HostCopies::to_device(const at::Tensor& host) {
  // Memory of the computation's stream, which may be freed there.
  at::Tensor device =
      at::empty_like(host, host.options().device(stream_.device()).pinned_memory(false));
  const c10::StreamGuard guard(stream_);
  device.copy_(host, /*non_blocking=*/true);
  memory_.push_back(device);
  return device;
}

void HostCopies::wait() {
  if (memory_.empty()) return;
  order(stream_, origin_);
  const c10::Stream current = current_stream(stream_.device());
  if (current != origin_) order(stream_, current);
  memory_.clear();
}

ActivationCheckpointState::Counts ActivationCheckpointState::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

void ActivationCheckpointState::reset_counts() {
  std::lock_guard lock(mutex_);
  counts_ = {};
}

bool ActivationCheckpointState::is_used_outside(int block, std::size_t number) const {
  std::lock_guard lock(mutex_);
  return used_outside_.contains({block, number});
}

void ActivationCheckpointState::note_use_outside(int block, std::size_t number) {
  std::lock_guard lock(mutex_);
  used_outside_.emplace(block, number);
}

c10::Stream ActivationCheckpointState::copy_stream(c10::Device device) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(device.index());
  if (found != streams_.end()) return found->second;
  const auto made = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return streams_.emplace(device.index(), made).first->second;
}

void ActivationCheckpointState::depart(std::unique_ptr<HostCopies> copies) {
  std::lock_guard lock(mutex_);
  departing_ = std::move(copies);
}

void ActivationCheckpointState::count_end(std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  ++counts_.blocks;
  counts_.released_bytes += bytes;
}

void ActivationCheckpointState::count_replay(std::int64_t operations) {
  std::lock_guard lock(mutex_);
  ++counts_.recomputed_blocks;
  counts_.operations += operations;
}

namespace {

// Stored as a hook of the parameter, because hooks stay with a parameter when its memory changes.
// It does not change gradients.
struct Mark {
  std::shared_ptr<ActivationCheckpointState> model;
  int block = -1;
  at::TensorBase operator()(const at::TensorBase&) const { return {}; }
};

const Mark* mark_of(const c10::TensorImpl& tensor) {
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(
      const_cast<c10::TensorImpl&>(tensor).autograd_meta());
  if (meta == nullptr || !meta->cpp_hooks_list_) return nullptr;
  for (const auto& hook : *meta->cpp_hooks_list_)
    if (const auto* mark = hook.target<Mark>()) return mark;
  return nullptr;
}

struct Pass {  // through a model, on this thread
  std::shared_ptr<ActivationCheckpointState> model;
  int block = -1;
  const c10::TensorImpl* first = nullptr;    // the parameter that began the block
  std::weak_ptr<CheckpointedRegion> region;  // kept alive by its storages
  std::weak_ptr<CheckpointedRegion> before;  // the block that ended last
  bool changes = false;                      // `region` still belongs to the previous block
  int depth = 0;                             // nesting of recorded operations and replays

  void end(const CheckpointedRegion::Storages& used) {
    if (const auto ended = region.lock()) {
      ended->end(used);
      before = ended;
    }
    region.reset();
    changes = false;
  }
  void leave() {
    // backward() begins with the last block, so releasing its results would save nothing.
    if (const auto last = region.lock()) last->keep_all();
    end({});
    before.reset();
    model.reset();
    block = -1;
    first = nullptr;
  }
  void enter(const Mark& mark, const c10::TensorImpl& parameter) {
    const bool is_other = mark.model != model || mark.block != block;
    if (!is_other && &parameter != first) return;
    if (!is_other && region.expired()) return;
    model = mark.model;
    block = mark.block;
    first = &parameter;
    changes = true;
  }
};

thread_local Pass pass;

class Deeper {
 public:
  Deeper() { ++pass.depth; }
  ~Deeper() { --pass.depth; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
};

void note_marks(const Call& call) {
  const auto count = call.operation().schema().arguments().size();
  for (const c10::IValue& argument : torch::jit::last(call.stack(), count)) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const c10::TensorImpl& tensor = *argument.toTensor().unsafeGetTensorImpl();
    if (const Mark* mark = mark_of(tensor)) return pass.enter(*mark, tensor);
  }
}

std::optional<RandomState> random_state(const Call& call, const torch::jit::Stack& arguments) {
  const auto& schema = call.operation().schema().arguments();
  std::optional<at::Generator> generator;
  bool takes_one = false;
  for (std::size_t i = 0; i < schema.size(); ++i) {
    // Only attention draws no numbers for a probability of 0; bernoulli_() and native_dropout() do.
    const bool is_of_attention = schema[i].name() == "dropout_p" && arguments[i].isDouble();
    if (is_of_attention && arguments[i].toDouble() == 0) return std::nullopt;
    if (schema[i].name() != "generator") continue;
    takes_one = true;
    if (arguments[i].isGenerator()) generator = arguments[i].toGenerator();
  }
  if (!takes_one && !call.operation().hasTag(at::Tag::nondeterministic_seeded)) return std::nullopt;
  if (!generator) {
    c10::Device device = at::kCPU;
    for_each_tensor_on(arguments, [&](StackIndex, const at::Tensor& tensor) {
      if (tensor.device().type() != at::kCPU) device = tensor.device();
    });
    generator = at::globalContext().defaultGenerator(device);
  }
  std::lock_guard lock(generator->mutex());
  return RandomState{*generator, generator->get_state()};
}

// The effects of an operation on memory besides reading.
struct Effect {
  bool makes = false;           // new memory
  bool writes_inside = false;   // of the region
  bool writes_outside = false;  // of the region
};

Effect effect_of(const Call& call, const torch::jit::Stack& arguments,
                 const CheckpointedRegion* region) {
  Effect effect;
  const auto& schema = call.operation().schema();
  const CheckpointedRegion::Storages given = storages_in(arguments, call.key());
  for_each_tensor_on(arguments, [&](StackIndex where, const at::Tensor& tensor) {
    const c10::Argument& argument = schema.arguments()[where.item];
    if (!is_written(argument) || argument.name().starts_with("running_")) return;
    const bool is_inside = region != nullptr && region->has(tensor);
    (is_inside ? effect.writes_inside : effect.writes_outside) = true;
  });
  const auto results = torch::jit::last(call.stack(), schema.returns().size());
  for_each_tensor_on(
      torch::jit::Stack(results.begin(), results.end()), [&](StackIndex, const at::Tensor& tensor) {
        const at::Tensor memory = memory_of(tensor, call.key());
        effect.makes = effect.makes || (memory.defined() && !is_lazy(memory) &&
                                        !given.contains(memory.storage().unsafeGetStorageImpl()));
      });
  return effect;
}

void record(Call& call) {
  const auto given = torch::jit::last(call.stack(), call.operation().schema().arguments().size());
  const torch::jit::Stack arguments(given.begin(), given.end());
  std::optional<RandomState> random;
  if (pass.block >= 0 && !pass.model->offloads()) random = random_state(call, arguments);
  {
    const Deeper deeper;
    call.proceed();
  }
  auto region = pass.region.lock();
  const Effect effect = effect_of(call, arguments, pass.changes ? nullptr : region.get());
  if (!effect.makes && !effect.writes_inside && !effect.writes_outside) return;
  if (pass.changes) {
    if (region) region->note_writes(call.operation().schema(), arguments);
    pass.end(storages_in(arguments, call.key()));
    region.reset();
    if (pass.block < 0) return pass.leave();
  }
  if (pass.block < 0) return;
  if (effect.writes_outside) {
    if (region && !pass.model->offloads()) region->keep_all();
    pass.end({});
    return;
  }
  if (!region)
    region = std::make_shared<CheckpointedRegion>(pass.model, pass.block, call.key(), pass.before);
  pass.region = region;
  region->add(call, arguments, std::move(random));
}

// Operations without gradients are not recorded. After such a write to a result of the block, what
// ran before it cannot run again.
void note_unrecorded_write(const Call& call) {
  const c10::FunctionSchema& schema = call.operation().schema();
  const auto region = pass.region.lock();
  if (!region || pass.model->offloads() || !schema.is_mutable()) return;
  const auto given = torch::jit::last(call.stack(), schema.arguments().size());
  bool writes = false;
  for_each_tensor_on(torch::jit::Stack(given.begin(), given.end()), [&](StackIndex where,
                                                                        const at::Tensor& tensor) {
    writes = writes || (is_written(schema.arguments()[where.item]) && region->has(tensor));
  });
  if (!writes) return;
  region->keep_all();
  pass.end({});
}

}  // namespace

void mark_block(const at::Tensor& parameter, std::shared_ptr<ActivationCheckpointState> model,
                int block) {
  auto* meta = torch::autograd::impl::materialize_autograd_meta(parameter);
  if (!meta->cpp_hooks_list_)
    torch::autograd::impl::create_cpp_hook(parameter, /*is_retains_grad_hooks=*/false);
  meta->cpp_hooks_list_->emplace_back(Mark{std::move(model), block});
}

bool has_block_mark(const at::Tensor& parameter) {
  return mark_of(*parameter.unsafeGetTensorImpl()) != nullptr;
}

void leave_block(const std::vector<at::Tensor>& results) {
  if (pass.depth > 0) return;
  torch::jit::Stack all;
  for (const at::Tensor& result : results) all.emplace_back(result);
  pass.end(storages_in(all, key()));
  pass.leave();
}

BlockPause::BlockPause() { ++pass.depth; }
BlockPause::~BlockPause() { --pass.depth; }

void record_block(Call& call) {
  if (pass.depth > 0 || call.kind() == Call::Kind::query) return call.proceed();
  if (torch::autograd::get_current_graph_task_id() >= 0) {
    pass.leave();
    return call.proceed();
  }
  if (!at::GradMode::is_enabled()) {
    note_unrecorded_write(call);
    return call.proceed();
  }
  note_marks(call);
  if (pass.block < 0 && !pass.changes) return call.proceed();
  record(call);
}

}  // namespace lockstep::dispatch
