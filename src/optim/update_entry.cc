#include "optim/update_entry.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "global/global_tensor.h"
#include "optim/state_tensors.h"
#include "optim/threads.h"

#include <lockstep/dispatch/part.h>

#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

namespace lockstep::optim {
namespace {

bool is_16_bits(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

bool is_for_kernel(const at::Tensor& parameter) {
  at::ScalarType dtype = parameter.scalar_type();
  return parameter.device().is_cpu() && (dtype == at::kFloat || is_16_bits(dtype));
}

void check_parameter(const at::Tensor& parameter, std::size_t i, const GroupStep& step) {
  const at::Tensor& gradient = parameter.grad();
  check(gradient.layout() == at::kStrided,
        "{}: parameter {} of group {} has a sparse gradient; only dense gradients are supported",
        step.optimizer, i, step.group);
  check(at::isFloatingType(parameter.scalar_type()),
        "{}: parameter {} of group {}: expected floating-point numbers, found {}", step.optimizer,
        i, step.group, c10::toString(parameter.scalar_type()));
  check(step.update.state == StateFormat::float32 || is_for_kernel(parameter),
        "{}: parameter {} of group {}: a state in fewer than 32 bits needs float32, bfloat16 or "
        "float16 on the CPU, found {} on {}",
        step.optimizer, i, step.group, c10::toString(parameter.scalar_type()),
        parameter.device().str());
}

// The kernels read float32 and the parameter's own dtype.
at::ScalarType gradient_dtype(const UpdateEntry& entry) {
  at::ScalarType own = entry.dense.scalar_type();
  bool is_float = entry.parameter.grad().scalar_type() == at::kFloat;
  return entry.has_16_bits() && is_float ? at::kFloat : own;
}

// Keeps the source of a gradient that is computed on the fly if a kernel can use the source
// directly.
void take_gradient(UpdateEntry& entry, const GroupStep& step) {
  const at::Tensor gradient = global::local_values(entry.parameter.grad());
  at::ScalarType dtype = gradient_dtype(entry);
  bool fits = entry.is_for_kernel() && gradient.scalar_type() == dtype &&
              gradient.strides() == entry.dense.strides();
  if (fits) entry.source = dispatch::source_of(gradient);
  if (!entry.source) dispatch::bring(gradient, step.optimizer, /*writes=*/false);
  entry.gradient = entry.source ? gradient : laid_out_as(gradient, entry.dense, dtype);
}

}  // namespace

bool UpdateEntry::has_16_bits() const { return is_16_bits(parameter.scalar_type()); }
bool UpdateEntry::is_for_kernel() const { return optim::is_for_kernel(parameter); }

at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& like, at::ScalarType dtype) {
  bool fits = tensor.strides() == like.strides() && tensor.scalar_type() == dtype &&
              tensor.device() == like.device();
  return fits ? tensor : at::empty_like(like, like.options().dtype(dtype)).copy_(tensor);
}

void check_listed_once(std::span<const at::Tensor> parameters, std::string_view caller) {
  std::vector<const at::TensorImpl*> listed;
  listed.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) listed.push_back(parameter.unsafeGetTensorImpl());
  std::ranges::sort(listed);
  const auto twice = std::ranges::adjacent_find(listed);
  if (twice == listed.end()) return;
  const auto first = std::ranges::find(parameters, *twice, &at::Tensor::unsafeGetTensorImpl);
  throw InvalidArgument(formatted(
      "{}: parameter {} of sizes [{}] is listed twice, as LibTorch's parameters() lists a tied "
      "weight; use the parameters() of a handle, or those of unique_parameters()",
      caller, first - parameters.begin(), lockstep::listed(first->sizes(), ", ")));
}

std::vector<UpdateEntry> make_entries(const std::vector<at::Tensor>& parameters,
                                      const GroupStep& step) {
  std::vector<UpdateEntry> entries;
  std::int64_t place = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    std::int64_t begin = place;
    place += parameter.numel();
    if (!parameter.grad().defined()) continue;
    check_parameter(parameter, i, step);
    dispatch::bring(parameter, step.optimizer, /*writes=*/true);
    global::settle_gradient(parameter);
    global::begin_write(parameter);
    UpdateEntry& entry = entries.emplace_back();
    entry.parameter = parameter;
    entry.local = entry.dense = global::local_values(parameter);
    if (!entry.local.is_non_overlapping_and_dense()) entry.dense = entry.local.contiguous();
    take_gradient(entry, step);
    entry.place = begin;
    entry.number = i;
  }
  return entries;
}

void copy_back(std::vector<UpdateEntry>& entries) {
  for (UpdateEntry& entry : entries) {
    bool is_copied = !entry.dense.is_same(entry.local);
    if (is_copied) entry.local.copy_(entry.dense);
    // Kernels bypass LibTorch, so bump the version as LibTorch's in-place operations do.
    bool is_known = is_copied && entry.local.is_same(entry.parameter);
    if (!is_known && !entry.parameter.is_inference())
      entry.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

at::Tensor updated_tensor(const UpdateEntry& entry) {
  if (!entry.has_16_bits()) return entry.dense;
  // As follow() of formats_kernel.h: if the parameter was written by other code, the master takes
  // its values.
  at::Tensor same = entry.master->to(entry.dense.scalar_type()).eq(entry.dense);
  entry.master->copy_(at::where(same, *entry.master, entry.dense.to(at::kFloat)));
  return *entry.master;
}

at::Tensor widened_gradient(const UpdateEntry& entry) {
  at::ScalarType dtype = entry.has_16_bits() ? at::kFloat : entry.dense.scalar_type();
  return laid_out_as(entry.gradient, entry.dense, dtype);
}

std::vector<at::Tensor> transformed(std::vector<at::Tensor> gradients,
                                    const ElementTransform& transform) {
  if (transform.is_none() || gradients.empty()) return gradients;
  for (at::Tensor& gradient : gradients) gradient = dispatch::values_of(gradient);
  gradients = at::_foreach_mul(gradients, transform.factor);
  if (std::isfinite(transform.limit)) {
    at::_foreach_clamp_min_(gradients, -transform.limit);
    at::_foreach_clamp_max_(gradients, transform.limit);
  }
  return gradients;
}

void publish_master(const UpdateEntry& entry) {
  if (entry.has_16_bits()) entry.dense.copy_(*entry.master);
}

namespace {

// Pieces are so long that the cost of dispatch is negligible, but shorter if some threads would
// otherwise get none.
constexpr std::int64_t most_piece_elements = 1 << 16;
constexpr std::int64_t least_piece_elements = 1 << 13;
static_assert(most_piece_elements % least_piece_elements == 0 &&
              least_piece_elements % block_elements == 0 && Tile::elements % block_elements == 0);

std::int64_t bytes_of(c10::ScalarType dtype) { return dtype == c10::ScalarType::Float ? 4 : 2; }

std::int64_t bytes_of(StateFormat format) {
  return format == StateFormat::float32 ? 4 : format == StateFormat::bfloat16 ? 2 : 1;
}

StateBuffer memory_of(const StateTensor& state) {
  if (state.values == nullptr) return {};
  StateBuffer memory{.data = static_cast<std::byte*>(state.values->mutable_data_ptr()),
                     .format = format_of(*state.values),
                     .codes = state.codes};
  if (memory.format == StateFormat::blockwise)
    memory.scales = state.scales->mutable_data_ptr<float>();
  return memory;
}

ParameterSpan span_of(const UpdateEntry& entry) {
  ParameterSpan span{.count = entry.dense.numel(),
                     .age = entry.age,
                     .first = entry.first,
                     .place = entry.place,
                     .dtype = entry.dense.scalar_type(),
                     .gradient_dtype = entry.gradient.scalar_type(),
                     .parameter = static_cast<std::byte*>(entry.dense.mutable_data_ptr()),
                     .source = entry.source.get(),
                     .source_begin = entry.source ? entry.gradient.storage_offset() : 0};
  if (!entry.source) span.gradient = static_cast<const std::byte*>(entry.gradient.const_data_ptr());
  if (entry.has_16_bits()) span.master = entry.master->mutable_data_ptr<float>();
  for (std::size_t i = 0; i < span.state.size(); ++i) span.state[i] = memory_of(entry.state[i]);
  return span;
}

bool goes_on(const StateBuffer& first, const StateBuffer& second, std::int64_t count) {
  if (first.data == nullptr || second.data == nullptr) return first.data == second.data;
  if (first.format != second.format) return false;
  if (second.data != first.data + count * bytes_of(first.format)) return false;
  if (first.format != StateFormat::blockwise) return true;
  return count % block_elements == 0 && second.scales == first.scales + count / block_elements;
}

bool goes_on(const ParameterSpan& first, const ParameterSpan& second) {
  if (first.dtype != second.dtype || first.gradient_dtype != second.gradient_dtype) return false;
  if (first.age != second.age || first.first != second.first) return false;
  if (second.place != first.place + first.count) return false;
  if (second.parameter != first.parameter + first.count * bytes_of(first.dtype)) return false;
  if (first.source != second.source) return false;
  if (first.source != nullptr && second.source_begin != first.source_begin + first.count)
    return false;
  if (first.source == nullptr &&
      second.gradient != first.gradient + first.count * bytes_of(first.gradient_dtype))
    return false;
  if (first.master != nullptr && second.master != first.master + first.count) return false;
  for (std::size_t i = 0; i < first.state.size(); ++i)
    if (!goes_on(first.state[i], second.state[i], first.count)) return false;
  return true;
}

float* open(const StateBuffer& state, std::int64_t begin, std::int64_t count, float* buffer) {
  const std::byte* data = state.data + begin * bytes_of(state.format);
  switch (state.format) {
    case StateFormat::float32:
      return reinterpret_cast<float*>(state.data) + begin;
    case StateFormat::bfloat16:
      widen(at::kBFloat16, reinterpret_cast<const std::uint16_t*>(data), buffer, count);
      break;
    case StateFormat::blockwise:
      read_blocks(state.codes, reinterpret_cast<const std::uint8_t*>(data),
                  state.scales + begin / block_elements, buffer, count);
  }
  return buffer;
}

void close(const StateBuffer& state, std::int64_t begin, std::int64_t count, const float* buffer,
           const StochasticRounding& rounding) {
  std::byte* data = state.data + begin * bytes_of(state.format);
  if (state.format == StateFormat::bfloat16)
    narrow_bfloat16(buffer, reinterpret_cast<std::uint16_t*>(data), count, rounding);
  if (state.format == StateFormat::blockwise)
    write_blocks(state.codes, buffer, reinterpret_cast<std::uint8_t*>(data),
                 state.scales + begin / block_elements, count, &rounding);
}

}  // namespace

bool ParameterSpan::is_plain() const {
  return master == nullptr &&
         std::all_of(state.begin(), state.end(), [](const StateBuffer& memory) {
           return memory.format == StateFormat::float32;
         });
}

double ParameterSpan::bytes_an_element() const {
  double bytes = 2.0 * static_cast<double>(bytes_of(dtype)) + (master != nullptr ? 8 : 0);
  bytes += static_cast<double>(source != nullptr ? source->bytes_an_element()
                                                 : bytes_of(gradient_dtype));
  for (const StateBuffer& memory : state) {
    if (memory.data == nullptr) continue;
    bytes += 2.0 * static_cast<double>(bytes_of(memory.format));
    if (memory.scales != nullptr) bytes += 2.0 * sizeof(float) / block_elements;
  }
  return bytes;
}

std::vector<ParameterSpan> make_spans(const std::vector<UpdateEntry>& entries) {
  std::vector<ParameterSpan> spans;
  for (const UpdateEntry& entry : entries) {
    if (!entry.is_for_kernel() || entry.dense.numel() == 0) continue;
    ParameterSpan span = span_of(entry);
    if (span.count == 0) continue;
    if (!spans.empty() && goes_on(spans.back(), span))
      spans.back().count += span.count;
    else
      spans.push_back(span);
  }
  return spans;
}

void count_bytes(std::span<const ParameterSpan> spans, const GroupStep& step) {
  if (step.bytes_moved == nullptr) return;
  for (const ParameterSpan& span : spans)
    *step.bytes_moved += std::llround(span.bytes_an_element() * static_cast<double>(span.count));
}

void for_each_piece(std::span<const ParameterSpan> spans,
                    const std::function<void(std::size_t, std::int64_t, std::int64_t)>& update) {
  struct Piece {
    std::size_t span;
    std::int64_t begin, end;
  };
  std::int64_t elements = 0;
  for (const ParameterSpan& span : spans) elements += span.count;
  const std::int64_t of_thread = elements / at::get_num_threads();
  const std::int64_t piece_elements =
      std::clamp(of_thread / least_piece_elements * least_piece_elements, least_piece_elements,
                 most_piece_elements);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < spans.size(); ++i)
    for (std::int64_t begin = 0; begin < spans[i].count; begin += piece_elements)
      pieces.push_back({i, begin, std::min(begin + piece_elements, spans[i].count)});
  for_each_in_parallel(pieces.size(), [&](std::size_t i) {
    update(pieces[i].span, pieces[i].begin, pieces[i].end);
  });
}

std::uint32_t rounding_key(std::uint64_t seed, std::int64_t group, std::int64_t age) {
  std::uint64_t step = static_cast<std::uint64_t>(age + (group << 40));
  return static_cast<std::uint32_t>(mix_bits(seed + 0x9e3779b97f4a7c15U * step) >> 16);
}

Tile::Tile(const ParameterSpan& span, std::int64_t begin, std::int64_t count, std::uint32_t key,
           StateFormat direct)
    : span_(span), begin_(begin), count_(count), key_(key), direct_(direct) {
  take_gradient();
  for (std::size_t i = 0; i < state_.size(); ++i)
    if (is_open(i))
      state_[i] =
          open(span.state[i], begin, count, state_buffers_[std::min<std::size_t>(i, 1)].data());
  if (span.master == nullptr) return;
  auto* bits = reinterpret_cast<const std::uint16_t*>(span.parameter + begin * 2);
  follow(span.dtype, bits, span.master + begin, count);
}

void Tile::take_gradient() {
  bool is_float = span_.gradient_dtype == c10::ScalarType::Float;
  std::array<std::uint16_t, elements> narrow;
  void* to = is_float ? static_cast<void*>(gradient_buffer_.data()) : narrow.data();
  const auto* gradient = static_cast<const std::byte*>(to);
  if (span_.source != nullptr)
    span_.source->read(span_.source_begin + begin_, count_, to);
  else
    gradient = span_.gradient + begin_ * bytes_of(span_.gradient_dtype);
  gradient_ = is_float ? reinterpret_cast<const float*>(gradient) : gradient_buffer_.data();
  if (is_float) return;
  auto* bits = reinterpret_cast<const std::uint16_t*>(gradient);
  widen(span_.gradient_dtype, bits, gradient_buffer_.data(), count_);
}

float* Tile::parameter() const {
  return span_.master != nullptr ? span_.master + begin_
                                 : reinterpret_cast<float*>(span_.parameter) + begin_;
}

void Tile::close() {
  auto place = static_cast<std::uint32_t>(span_.place + begin_);
  for (int i = 0; i < 2; ++i)
    if (is_open(i))
      optim::close(span_.state[i], begin_, count_, state_[i],
                   {.key = key_, .first = place, .stream = i});
  if (span_.master == nullptr) return;
  auto* bits = reinterpret_cast<std::uint16_t*>(span_.parameter + begin_ * 2);
  narrow(span_.dtype, span_.master + begin_, bits, count_);
}

}  // namespace lockstep::optim
