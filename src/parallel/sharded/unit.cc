#include "parallel/sharded/unit.h"

#include "dispatch/parts/part_record.h"
#include "layout/unit_plan.h"
#include "module/specs.h"

#include <lockstep/base/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace lockstep::sharded {
namespace {

constexpr std::int64_t alignment = 64;  // bytes, of tensors in the dtype of the computation

c10::ScalarType dtype_of(const std::vector<NamedParameter>& parameters) {
  return parameters.front().tensor.scalar_type();
}

c10::ScalarType compute_dtype_of(const std::vector<NamedParameter>& parameters,
                                 const UnitSettings& settings) {
  c10::ScalarType own = dtype_of(parameters);
  return c10::isFloatingType(own) ? settings.compute_dtype.value_or(own) : own;
}

layout::FlatLayout layout_of(const std::vector<NamedParameter>& parameters, int world,
                             c10::ScalarType compute_dtype) {
  std::vector<layout::TensorSpec> specs;
  for (const NamedParameter& parameter : parameters) specs.push_back(modules::spec_of(parameter));
  auto own = static_cast<std::int64_t>(c10::elementSize(dtype_of(parameters)));
  auto computed = static_cast<std::int64_t>(c10::elementSize(compute_dtype));
  return layout::unit_layout(specs, world, std::max(alignment, alignment * own / computed));
}

bool keeps_strides(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

std::vector<std::int64_t> strides_of(const at::Tensor& tensor) {
  if (keeps_strides(tensor)) return tensor.strides().vec();
  c10::DimVector strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

// The elements in the order in which strides_of() lays them.
at::Tensor flattened(const at::Tensor& tensor) {
  at::Tensor values = tensor.detach();
  if (!keeps_strides(values)) return values.contiguous().view({-1});
  return values.as_strided({values.numel()}, {1});
}

std::string released_text(const std::string& unit) {
  return formatted(
      "this parameter belongs to unit {}, whose values are divided over the ranks now; use it in "
      "an "
      "operation, or inside unsharded()",
      unit);
}

}  // namespace

// Counts operations that write slices: LibTorch's optimizers write some of them through data(),
// which has a version counter of its own.
class Unit::Writes final : public dispatch::StorageOwner {
 public:
  void pin(const dispatch::StorageUse& use) override {
    if (use.writes && before) before();
  }
  void written() override { ++count; }
  void unpin() noexcept override {}

  std::function<void()> before;
  std::atomic<std::int64_t> count = 0;
};

Unit::Unit(std::string name, std::vector<NamedParameter> parameters, Group& group,
           std::shared_ptr<BufferPool> pool, std::weak_ptr<dispatch::StorageOwner> owner,
           const UnitSettings& settings)
    : name_(std::move(name)),
      tag_(formatted("unit {}", name_)),
      parameters_(std::move(parameters)),
      settings_(settings),
      group_(group),
      pool_(std::move(pool)),
      trains_(parameters_.front().tensor.requires_grad()),
      dtype_(dtype_of(parameters_)),
      compute_dtype_(compute_dtype_of(parameters_, settings)),
      device_(parameters_.front().tensor.device()),
      layout_(layout_of(parameters_, group_.size(), compute_dtype_)),
      range_(layout::shard_range(layout_.numel(), group_.size(), group_.rank())),
      owned_(layout::owned_slices(layout_, group_.size(), group_.rank())),
      storage_(layout_.numel() * static_cast<std::int64_t>(c10::elementSize(compute_dtype_)),
               device_, std::move(owner), settings.key, released_text(name_)) {
  at::NoGradGuard no_grad;
  if (keeps_buffer()) buffer_ = make_whole();
  bool in_place = keeps_buffer() && !is_converted();
  shard_ = in_place ? own_part() : make_shard();
  take_parameters();
  make_slices();
}

at::Tensor Unit::make_whole() {
  if (!is_node_shared()) return pool_->make(layout_.numel(), compute_dtype_, device_);
  c10::InferenceMode off(false);
  return group_.empty_node_shared({layout_.numel()}, compute_dtype_);
}

at::Tensor Unit::make_shard() {
  if (settings_.offload) return settings_.offload->zeros(range_.length(), dtype_);
  return pool_->make(range_.length(), dtype_, device_);
}

// Where it is offloaded, nobody needs it for a while.
void Unit::leave_shard() const {
  if (settings_.offload) settings_.offload->has_used(shard_);
}

void Unit::fetch_ahead() const {
  if (settings_.offload) settings_.offload->will_use(shard_);
}

at::Tensor Unit::own_part() const { return buffer_.narrow(0, range_.begin, range_.length()); }

void Unit::take_parameters() {
  shard_.zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    strides_.push_back(strides_of(parameter));
    const auto& [entry, elements, offset] = owned_[i];
    shard_.narrow(0, offset, elements.length())
        .copy_(flattened(parameter).narrow(0, elements.begin, elements.length()));
    parameter.mutable_grad().reset();
    parameter.set_data(storage_.place(compute_dtype_, layout_.entry(static_cast<int>(i)).offset,
                                      parameter.sizes(), strides_.back()));
  }
  leave_shard();
}

void Unit::make_slices() {
  writes_ = std::make_shared<Writes>();
  std::vector<dispatch::Part> parts;
  for (const layout::FlatSlice& slice : owned_) {
    const layout::FlatEntry& entry = layout_.entry(slice.entry);
    parts.push_back({entry.name, entry.sizes, slice.of_tensor, slice.offset});
  }
  auto division = settings_.division;
  if (!division) division = std::make_shared<dispatch::Division>(group_);
  parts_ = std::make_shared<dispatch::Parts>(std::move(division), std::move(parts));
  dispatch::LazyStorage storage(static_cast<std::int64_t>(shard_.nbytes()), shard_device(), writes_,
                                settings_.key, "", dispatch::record_of_parts(parts_));
  storage.attach(shard_);
  for (const layout::FlatSlice& slice : owned_)
    slices_.push_back(storage.place(dtype_, slice.offset, {slice.of_tensor.length()}, {1})
                          .requires_grad_(trains_));
}

// Counts up with every write to a slice: operations tell writes_, kernels that write past LibTorch
// count the version up.
std::int64_t Unit::version() const {
  std::int64_t sum = writes_->count;
  for (const at::Tensor& slice : slices_) sum += slice._version();
  return sum;
}

void Unit::post_gather() {
  at::NoGradGuard no_grad;
  if (!buffer_.defined()) buffer_ = pool_->take(layout_.numel(), compute_dtype_, device_);
  at::Tensor input = shard_;
  gathered_version_ = version();
  if (is_converted()) {
    input = own_part();
    bool published = is_node_shared() && published_version_ == gathered_version_;
    if (!published)
      input.copy_(shard_, /*non_blocking=*/true);  // outdated() says what was written meanwhile
    published_version_ = gathered_version_;
  }
  gather_ = group_.all_gather(buffer_, input, {.tag = tag_, .timeout = settings_.timeout});
  phase_ = Phase::arriving;
}

void Unit::finish_gather() {
  {
    parallel::WaitTime::Scope waiting(*settings_.waits);
    gather_.wait();
  }
  gather_ = {};
  leave_shard();
  storage_.attach(buffer_);
  phase_ = Phase::present;
}

void Unit::release() {
  storage_.detach();
  phase_ = Phase::absent;
  if (copy_.defined()) pool_->give(std::exchange(copy_, at::Tensor()));
  if (keeps_buffer()) return;
  pool_->give(std::exchange(buffer_, at::Tensor()));
}

void Unit::take_copy() {
  at::NoGradGuard no_grad;
  copy_ = pool_->take(layout_.numel(), compute_dtype_, device_);
  group_.all_gather(copy_, own_part(), {.tag = tag_, .timeout = settings_.timeout}).wait();
  storage_.attach(copy_);
}

Work Unit::post_meeting(std::string_view tag) {
  return group_.barrier({.tag = tag, .timeout = settings_.timeout});
}

void Unit::before_slice_writes(std::function<void()> action) {
  writes_->before = std::move(action);
}

void Unit::write_back() {
  at::NoGradGuard no_grad;
  at::Tensor now = own_part();
  if (copy_.defined()) now.copy_(copy_.narrow(0, range_.begin, range_.length()));
  if (!is_converted()) {
    if (!keeps_buffer()) shard_.copy_(now);
    return;
  }
  now = now.to(shard_device());
  // What was not written keeps the digits that the computation's dtype does not have.
  at::Tensor written = now.ne(shard_.to(compute_dtype_));
  shard_.copy_(at::where(written, now.to(dtype_), shard_));
  leave_shard();
}

void Unit::remember() {
  at::NoGradGuard no_grad;
  remembered_ = pool_->take(range_.length(), dtype_, shard_device()).copy_(shard_);
}

void Unit::undo() {
  at::NoGradGuard no_grad;
  shard_.copy_(remembered_);
  published_version_ = -1;
}

void Unit::forget() { pool_->give(std::exchange(remembered_, at::Tensor())); }

const std::string& Unit::parameter_at(std::int64_t offset) const {
  std::size_t found = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (layout_.entry(static_cast<int>(i)).offset <= offset) found = i;
  return parameters_[found].name;
}

const std::string* Unit::first_stranger() const {
  for (const NamedParameter& parameter : parameters_)
    if (!storage_.holds(parameter.tensor)) return &parameter.name;
  return nullptr;
}

std::vector<at::Tensor> Unit::whole_values() {
  at::NoGradGuard no_grad;
  at::Tensor whole = at::empty({layout_.numel()}, shard_.options());
  group_.all_gather(whole, shard_, {.tag = tag_, .timeout = settings_.timeout}).wait();
  leave_shard();
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const layout::FlatEntry& entry = layout_.entry(static_cast<int>(i));
    values.push_back(at::empty_strided(entry.sizes, strides_[i], shard_.options()));
    flattened(values.back()).copy_(whole.narrow(0, entry.offset, entry.numel));
  }
  return values;
}

void Unit::take_values(int i, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const auto& [entry, elements, offset] = owned_[static_cast<std::size_t>(i)];
  at::Tensor laid = at::empty_strided(values.sizes(), strides(i), shard_.options()).copy_(values);
  shard_.narrow(0, offset, elements.length())
      .copy_(flattened(laid).narrow(0, elements.begin, elements.length()));
  published_version_ = -1;
}

void Unit::hand_back() {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> values = whole_values();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].tensor.set_data(values[i].to(device_));
}

std::int64_t Unit::shard_bytes() const {
  bool in_whole = keeps_buffer() && !is_converted();
  return in_whole || settings_.offload ? 0 : static_cast<std::int64_t>(shard_.nbytes());
}

std::int64_t Unit::whole_bytes() const {
  if (!keeps_buffer()) return 0;
  return static_cast<std::int64_t>(is_node_shared() ? own_part().nbytes() : buffer_.nbytes());
}

void Unit::rename(std::string name, std::vector<NamedParameter> parameters) {
  name_ = std::move(name);
  tag_ = formatted("unit {}", name_);
  parameters_ = std::move(parameters);
  layout_ = layout_of(parameters_, group_.size(), compute_dtype_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) parts_->rename(i, parameters_[i].name);
  storage_.explain(released_text(name_));
}

void Unit::abandon(std::string text) {
  gather_ = {};
  storage_.explain(std::move(text));
  phase_ = Phase::absent;
}

}  // namespace lockstep::sharded
