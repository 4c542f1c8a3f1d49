#include "module/checks.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "dispatch/lazy_storage.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

namespace lockstep::modules {
namespace {

struct Digest {
  std::int64_t fingerprint = 0;
  std::int64_t bytes = 0;
  bool operator==(const Digest&) const = default;
};

std::vector<Digest> exchange(const Group& group, Digest mine, const CallOptions& call) {
  const auto values = numbers_of_all(group, {mine.fingerprint, mine.bytes}, call);
  std::vector<Digest> all;
  for (std::size_t i = 0; i < values.size(); i += 2) all.push_back({values[i], values[i + 1]});
  return all;
}

// Returns the text of a rank. Its digest came from that rank, and is checked.
std::string text_of(Group group, const std::string& mine, int rank, const Digest& digest,
                    const CallOptions& call) {
  constexpr std::int64_t most_bytes = std::int64_t{1} << 30;
  check_input(digest.bytes >= 0 && digest.bytes <= most_bytes,
              "comparing models: expected a text of 0 to {} bytes from rank {}, found {}",
              most_bytes, rank, digest.bytes);
  at::Tensor text = at::empty({digest.bytes}, at::kByte);
  if (group.rank() == rank) mine.copy(static_cast<char*>(text.data_ptr()), text.nbytes());
  if (digest.bytes > 0) group.broadcast(text, rank, call).wait();
  return {static_cast<const char*>(text.data_ptr()), text.nbytes()};
}

// Returns the first line that differs, in both versions.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_of_a(a), lines_of_b(b);
  for (;;) {
    std::string line_of_a, line_of_b;
    bool has_a = static_cast<bool>(std::getline(lines_of_a, line_of_a));
    bool has_b = static_cast<bool>(std::getline(lines_of_b, line_of_b));
    if (!has_a && !has_b) return {"the same text", "the same text"};
    if (has_a && has_b && line_of_a == line_of_b) continue;
    return {has_a ? line_of_a : "nothing more", has_b ? line_of_b : "nothing more"};
  }
}

std::string describe(std::string_view kind, const std::string& name, const at::Tensor& tensor) {
  if (tensor.is_nested()) return formatted("{} {}: nested", kind, name);
  std::string text = formatted("{} {}: {} [{}]", kind, name, c10::toString(tensor.scalar_type()),
                               listed(tensor.sizes(), ", "));
  if (tensor.layout() != at::kStrided) return text + " " + c10::str(tensor.layout());
  if (tensor.is_meta()) text += " without memory";
  if (tensor.is_inference()) text += " made inside InferenceMode";
  if (!tensor.is_contiguous())
    text += formatted(" with strides [{}]", listed(tensor.strides(), ", "));
  return text;
}

}  // namespace

std::vector<std::int64_t> numbers_of_all(Group group, std::vector<std::int64_t> own,
                                         const CallOptions& call, std::source_location where) {
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(group.size()));
  group
      .all_gather(at::from_blob(all.data(), {std::ssize(all)}, at::kLong),
                  at::from_blob(own.data(), {std::ssize(own)}, at::kLong), call, where)
      .wait();
  return all;
}

void run_on_root_or_fail(Group& group, const std::function<void()>& action) {
  run_on_all_or_fail(group, [&] {
    if (group.is_root()) action();
  });
}

std::string text_of_root(Group& group, const std::function<std::string()>& make) {
  std::string text;
  run_on_root_or_fail(group, [&] { text = make(); });
  return broadcast_text(group, std::move(text));
}

std::vector<std::string> lines_of(const ModuleTensors& tensors) {
  std::vector<std::string> lines, names;
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor, aliases] : tensors.parameters) {
    std::string line = describe("parameter", name, tensor);
    if (!tensor.requires_grad()) line += " without gradient";
    for (const std::string& alias : aliases) line += " tied to " + alias;
    lines.push_back(std::move(line));
    names.push_back(name);
    all.push_back(tensor);
  }
  for (const auto& [name, tensor] : tensors.buffers) {
    std::string line = describe("buffer", name, tensor);
    if (gets_gradient(tensor)) line += " with gradient";
    lines.push_back(std::move(line));
    names.push_back(name);
    all.push_back(tensor);
  }
  std::vector<std::optional<std::size_t>> sharing = first_sharing(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (sharing[i]) lines[i] += " shares memory with " + names[*sharing[i]];
  return lines;
}

void check_same_lines(const Group& group, const std::vector<std::string>& lines,
                      const CallOptions& call) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  Digest mine{static_cast<std::int64_t>(fingerprint(text)), static_cast<std::int64_t>(text.size())};
  std::vector<Digest> digests = exchange(group, mine, call);
  auto other = std::find_if(digests.begin(), digests.end(),
                            [&](const Digest& one) { return one != digests.front(); });
  if (other == digests.end()) return;
  auto rank = static_cast<int>(other - digests.begin());
  const std::string at_0 = text_of(group, text, 0, digests.front(), call);
  auto [found_at_0, found_at_rank] =
      first_difference(at_0, text_of(group, text, rank, *other, call));
  throw Mismatch(formatted("the ranks' models differ: rank 0 has {}; rank {} has {}", found_at_0,
                           rank, found_at_rank));
}

namespace {

bool has_dense_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_meta() &&
         tensor.numel() > 0;
}

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

// Returns the number of elements from the tensor's first element in memory to its last, inclusive.
std::int64_t extent_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return last + 1;
}

// A byte range: addresses of the process, or offsets in a storage without memory.
struct Span {
  const void* space = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t number = 0;
};

Span span_of(const at::Tensor& tensor, std::size_t number) {
  bool is_released = dispatch::is_lazy(tensor) && !dispatch::has_memory(tensor);
  auto base = is_released ? 0 : reinterpret_cast<std::int64_t>(tensor.storage().data());
  auto size = static_cast<std::int64_t>(tensor.element_size());
  std::int64_t begin = base + tensor.storage_offset() * size;
  return {is_released ? storage_of(tensor) : nullptr, begin, begin + extent_of(tensor) * size,
          number};
}

// Returns flags for `count` elements, with those of `tensor` set; its first element is number
// `begin`.
at::Tensor marked(const at::Tensor& tensor, std::int64_t begin, std::int64_t count) {
  at::Tensor flags = at::zeros({count}, at::kBool);
  without_repetitions(flags.as_strided(tensor.sizes(), tensor.strides(), begin)).fill_(true);
  return flags;
}

// Returns true if overlapping spans have common elements: they may be interleaved.
bool have_common_elements(const at::Tensor& a, const Span& of_a, const at::Tensor& b,
                          const Span& of_b) {
  auto size = static_cast<std::int64_t>(a.element_size());
  std::int64_t begin = std::min(of_a.begin, of_b.begin);
  std::int64_t bytes = std::max(of_a.end, of_b.end) - begin;
  bool comparable = a.element_size() == b.element_size() && (of_a.begin - of_b.begin) % size == 0;
  if (!comparable || (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()))
    return true;
  at::Tensor both = marked(a, (of_a.begin - begin) / size, bytes / size)
                        .logical_and_(marked(b, (of_b.begin - begin) / size, bytes / size));
  return both.any().item<bool>();
}

}  // namespace

at::Tensor without_repetitions(const at::Tensor& tensor) {
  at::Tensor once = tensor;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) once = once.narrow(dim, 0, 1);
  return once;
}

bool repeats_elements(const at::Tensor& tensor) {
  if (!has_dense_memory(tensor) || tensor.is_non_overlapping_and_dense()) return false;
  at::NoGradGuard no_grad;
  return marked(tensor, 0, extent_of(tensor)).sum().item<std::int64_t>() < tensor.numel();
}

std::vector<std::optional<std::size_t>> first_sharing(std::span<const at::Tensor> tensors) {
  at::NoGradGuard no_grad;
  std::vector<Span> spans;
  std::set<const void*> seen;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (has_dense_memory(tensors[i]) && seen.insert(tensors[i].unsafeGetTensorImpl()).second)
      spans.push_back(span_of(tensors[i], i));
  std::ranges::sort(spans, {}, [](const Span& one) { return std::tuple(one.space, one.begin); });
  std::vector<std::optional<std::size_t>> sharing(tensors.size());
  for (std::size_t i = 0; i < spans.size(); ++i)
    for (std::size_t j = i + 1;
         j < spans.size() && spans[j].space == spans[i].space && spans[j].begin < spans[i].end;
         ++j) {
      auto [first, second] = std::minmax(spans[i].number, spans[j].number);
      if (sharing[second] && *sharing[second] <= first) continue;
      if (have_common_elements(tensors[spans[i].number], spans[i], tensors[spans[j].number],
                               spans[j]))
        sharing[second] = first;
    }
  return sharing;
}

bool is_held_elsewhere(const at::Tensor& tensor, std::span<const at::Tensor> tensors) {
  if (!has_dense_memory(tensor) || dispatch::is_lazy(tensor)) return false;
  std::set<const void*> holders;
  std::map<const at::TensorImpl*, std::size_t> views;  // per base
  for (const at::Tensor& one : tensors) {
    if (!one.has_storage() || storage_of(one) != storage_of(tensor)) continue;
    bool is_new = holders.insert(one.unsafeGetTensorImpl()).second;
    if (is_new && one.is_view()) ++views[one._base().unsafeGetTensorImpl()];
  }
  // A view holds its base, too: randn(12) in randn(12).view(...).
  for (const auto& [base, count] : views)
    if (c10::raw::intrusive_ptr::use_count(const_cast<at::TensorImpl*>(base)) == count)
      holders.insert(base);
  return tensor.storage().use_count() > holders.size();
}

namespace {

// Gives access to a module's own parameters without the copy that named_parameters() makes.
struct Inside : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& of(const torch::nn::Module& module) {
    return module.*(&Inside::parameters_);
  }
};

// Calls action(tensor, trains) for each tensor. LibTorch gives no access to a module's own buffers
// without a copy.
template <typename Action>
void for_each_tensor(const torch::nn::Module& module, bool with_buffers, const Action& action) {
  for (const auto& item : Inside::of(module).items())
    if (item.value().defined()) action(item.value(), item.value().requires_grad());
  if (with_buffers)
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      action(item.value(), gets_gradient(item.value()));
  for (const auto& child : module.children()) for_each_tensor(*child, with_buffers, action);
}

}  // namespace

ModuleWatch::ModuleWatch(const torch::nn::Module& module, std::vector<std::string> ignored,
                         std::string made, bool with_buffers)
    : module_(module),
      ignored_(std::move(ignored)),
      made_(std::move(made)),
      with_buffers_(with_buffers) {
  for_each_tensor(module_, with_buffers_, [&](const at::Tensor& tensor, bool trains) {
    as_made_.emplace_back(tensor.unsafeGetTensorImpl(), trains);
    known_.push_back(tensor);
  });
}

bool ModuleWatch::is_as_made() const {
  std::size_t place = 0;
  bool same = true;
  for_each_tensor(module_, with_buffers_, [&](const at::Tensor& tensor, bool trains) {
    same = same && place < as_made_.size() &&
           as_made_[place].first == tensor.unsafeGetTensorImpl() &&
           (as_made_[place].second || !trains);
    ++place;
  });
  return same;
}

void ModuleWatch::check() const {
  if (is_as_made()) return;
  for (const NamedParameter& parameter : unique_parameters(module_))
    check_one(parameter, parameter.tensor.requires_grad(), "parameter");
  if (!with_buffers_) return;
  for (const NamedParameter& buffer : unique_buffers(module_))
    check_one(buffer, gets_gradient(buffer.tensor), "buffer");
}

void ModuleWatch::check_one(const NamedParameter& one, bool trains, const char* kind) const {
  if (is_ignored(one, ignored_)) return;
  const auto known = std::ranges::find(as_made_, one.tensor.unsafeGetTensorImpl(),
                                       [](const Trains& made) { return made.first; });
  const bool is_new = known == as_made_.end();
  if (!is_new && (known->second || !trains)) return;
  throw InvalidArgument(formatted(
      "{} {} since {}: the handle does not know it; make the handle after that", one.name,
      is_new ? formatted("is a new {}", kind) : "requires a gradient now and has changed", made_));
}

}  // namespace lockstep::modules
