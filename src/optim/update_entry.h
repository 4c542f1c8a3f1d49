// A parameter in one step(), the same for all optimizers: the tensor to update, its gradient, and
// its state.
#pragma once

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "optim/formats_kernel.h"

#include <lockstep/optim/gradient_transform.h>
#include <lockstep/optim/update_options.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/flat_hash_map.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::optim {

// The change of each element of a gradient before an update uses it: g becomes clamp(g * factor,
// -limit, limit). Any sequence of scaling and clamping reduces to this form.
struct ElementTransform {
  double factor = 1;
  double limit = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool is_none() const;
  void scale(double by);
  void clamp(double to);
};

// One tensor of a parameter's state, in place. If `values` is null, the entry is unused.
struct StateTensor {
  at::Tensor* values = nullptr;
  at::Tensor* scales =
      nullptr;  // null: always float32 (or the parameter's dtype outside the kernel)
  Codes codes = Codes::with_sign;
};

struct UpdateEntry {
  at::Tensor parameter;  // the user's
  at::Tensor local;      // this rank's part of a global parameter; otherwise the parameter itself
  at::Tensor dense;      // `local` if its memory has no holes; otherwise a copy that is copied back
  at::Tensor gradient;   // in the layout of `dense`
  // Source of the gradient's values; null: they are in memory.
  std::shared_ptr<const dispatch::ValueSource> source;
  at::Tensor* master = nullptr;
  std::array<StateTensor, 3> state;
  std::int64_t age = 0;    // number of this update of the parameter, from 1
  bool first = false;      // the parameter had no state before
  std::int64_t place = 0;  // number of elements in the group before this parameter
  std::size_t number = 0;  // index in the group

  [[nodiscard]] bool has_16_bits() const;
  // Returns true if our kernels update the parameter, false if LibTorch's do.
  [[nodiscard]] bool is_for_kernel() const;
};

// Values that all entries of a group share.
struct GroupStep {
  UpdateOptions update;
  ElementTransform transform;
  std::int64_t group = 0;
  const char* optimizer = "";           // for messages
  std::int64_t* bytes_moved = nullptr;  // counts up; null: not counted
};

// Returns entries, with dense memory, for the parameters of a group that have a gradient. Throws
// InvalidArgument, before any change, for an unsupported gradient, dtype or state format.
[[nodiscard]] std::vector<UpdateEntry> make_entries(const std::vector<at::Tensor>& parameters,
                                                    const GroupStep& step);

// Finishes an update: copies dense copies back into parameters with holes in their memory, and
// bumps the version of every parameter.
void copy_back(std::vector<UpdateEntry>& entries);

// Returns the tensor itself if it already has the strides, dtype and device of `like`.
[[nodiscard]] at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& like,
                                     at::ScalarType dtype);

// Returns the tensor to update: the parameter itself, or its master.
[[nodiscard]] at::Tensor updated_tensor(const UpdateEntry& entry);
// Returns the gradient in the dtype of that tensor.
[[nodiscard]] at::Tensor widened_gradient(const UpdateEntry& entry);
// Returns transformed copies, or the gradients themselves if there is nothing to do. A device runs
// few kernels for many gradients. The update's own kernel handles `maximize`.
[[nodiscard]] std::vector<at::Tensor> transformed(std::vector<at::Tensor> gradients,
                                                  const ElementTransform& transform);
// Rounds a master into its parameter.
void publish_master(const UpdateEntry& entry);

// Returns an undefined tensor without a closure.
[[nodiscard]] inline at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  at::AutoGradMode with_gradients(true);
  return closure();
}

[[nodiscard]] inline std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : groups)
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

// Throws InvalidArgument if a parameter is listed twice, as LibTorch's parameters() lists a tied
// weight: each pass would unscale, clip and update it twice. The message begins with `caller`.
void check_listed_once(std::span<const at::Tensor> parameters, std::string_view caller);

// Throws InvalidArgument if the product could underflow in the gradient's own dtype; PyTorch
// refuses the same.
inline void check_can_scale(std::span<const at::Tensor> parameters, double factor) {
  for (std::size_t i = 0; factor < 1 && i < parameters.size(); ++i)
    check(!parameters[i].grad().defined() || parameters[i].grad().scalar_type() != at::kHalf,
          "unscaling: the gradient of parameter {} is float16, in which a small one would be lost; "
          "let scaler.step() of an optimizer of lockstep::optim unscale it, in float32, or keep "
          "parameters in float32",
          i);
}

// Multiplies in place; writes nothing if the factor is 1.
inline void multiply_gradients(std::span<const at::Tensor> parameters, double factor) {
  if (factor == 1) return;
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
}

// Returns gradient_norm() (clipping.h) of the transformed gradients.
[[nodiscard]] double transformed_norm(std::span<const at::Tensor> parameters,
                                      const ElementTransform& transform, double norm_type);

// Returns the norm that the transform clips, before it is clipped; std::nullopt if it clips none.
[[nodiscard]] std::optional<double> norm_to_clip(std::span<const at::Tensor> parameters,
                                                 const GradientTransform& transform);

// Returns true if no element of the gradients is inf or NaN, on any rank that has parts of them.
[[nodiscard]] bool all_finite(std::span<const at::Tensor> parameters);

using StateMap = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// Returns the state of `parameter`: creates a new state if the parameter has no state, and converts
// a state of torch::optim.
template <class State, class TorchState>
State& own_state(StateMap& states, const at::Tensor& parameter) {
  std::unique_ptr<torch::optim::OptimizerParamState>& place =
      states[parameter.unsafeGetTensorImpl()];
  if (!place) place = std::make_unique<State>();
  if (auto* own = dynamic_cast<State*>(place.get())) return *own;
  auto* plain = dynamic_cast<TorchState*>(place.get());
  check(plain != nullptr, "optimizer: the state of a parameter belongs to another optimizer");
  auto own = std::make_unique<State>(*plain);
  State& state = *own;
  place = std::move(own);
  return state;
}

// Spans: the unit of work of our kernels. A span is one or more parameters that are adjacent in
// memory, together with their gradients and their state.

// State memory in its storage format. Offsets count elements.
struct StateBuffer {
  std::byte* data = nullptr;  // null: not in use
  float* scales = nullptr;
  StateFormat format = StateFormat::float32;
  Codes codes = Codes::with_sign;
};

struct ParameterSpan {
  std::int64_t count = 0;
  std::int64_t age = 0;
  bool first = false;
  std::int64_t place = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;           // of the parameter
  c10::ScalarType gradient_dtype = c10::ScalarType::Float;  // the parameter's dtype, or float32
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  const dispatch::ValueSource* source = nullptr;  // computes the gradient, which then has no memory
  std::int64_t source_begin = 0;
  float* master = nullptr;  // null: the parameter is float32
  std::array<StateBuffer, 3> state;

  // Returns true if everything is float32, so that a kernel needs buffers for computed gradients
  // only.
  [[nodiscard]] bool is_plain() const;
  // Returns the bytes per element that an update reads and writes.
  [[nodiscard]] double bytes_an_element() const;
};

// Returns the spans of those entries that our kernels update, in order. `entries` own the memory.
[[nodiscard]] std::vector<ParameterSpan> make_spans(const std::vector<UpdateEntry>& entries);

// Calls update(index of the span, begin, end) for pieces of all spans on LibTorch's threads; pieces
// begin at multiples of block_elements.
void for_each_piece(std::span<const ParameterSpan> spans,
                    const std::function<void(std::size_t, std::int64_t, std::int64_t)>& update);

// For plain spans: calls update(begin, end, gradient) for tiles of [begin, end); `gradient` points
// to the gradient of the tile's first element. If gradients are computed on the fly, a tile fits
// the L1 cache; otherwise there is a single tile.
template <typename Update>
void for_each_tile(const ParameterSpan& span, std::int64_t begin, std::int64_t end,
                   Update&& update) {
  if (span.source == nullptr)
    return update(begin, end, reinterpret_cast<const float*>(span.gradient) + begin);
  alignas(64) std::array<float, 4096> gradient;
  for (; begin < end; begin += std::ssize(gradient)) {
    std::int64_t count = std::min(std::ssize(gradient), end - begin);
    span.source->read(span.source_begin + begin, count, gradient.data());
    update(begin, begin + count, gradient.data());
  }
}

// Adds the bytes that an update of all spans reads and writes to step.bytes_moved.
void count_bytes(std::span<const ParameterSpan> spans, const GroupStep& step);

// Returns the key of the random rounding bits for one step of one group.
[[nodiscard]] std::uint32_t rounding_key(std::uint64_t seed, std::int64_t group, std::int64_t age);

// Some elements of a span as float32. If the memory is not float32, they are in buffers that stay
// in the L1 cache.
class Tile {
 public:
  static constexpr std::int64_t elements = 1024;  // whole blocks

  // Loads the elements [begin, begin + count) of `span`; count is at most `elements`. For state in
  // the format `direct`, state() returns null: the kernel itself reads and writes it.
  Tile(const ParameterSpan& span, std::int64_t begin, std::int64_t count, std::uint32_t key,
       StateFormat direct = StateFormat::float32);

  [[nodiscard]] float* parameter() const;
  [[nodiscard]] const float* gradient() const { return gradient_; }
  // Null if the span has no state at this index.
  [[nodiscard]] float* state(std::size_t which) const { return state_[which]; }

  // Writes changed elements back to the span.
  void close();

 private:
  [[nodiscard]] bool is_open(std::size_t which) const {
    return span_.state[which].data != nullptr &&
           (direct_ == StateFormat::float32 || span_.state[which].format != direct_);
  }

  void take_gradient();

  const ParameterSpan& span_;
  std::int64_t begin_, count_;
  std::uint32_t key_;
  StateFormat direct_;
  const float* gradient_ = nullptr;
  std::array<float*, 3> state_{};
  alignas(64) std::array<float, elements> gradient_buffer_;
  alignas(64) std::array<std::array<float, elements>, 2> state_buffers_;
};

}  // namespace lockstep::optim
