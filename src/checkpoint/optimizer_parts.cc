#include "checkpoint/optimizer_parts.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/optimizer_state.h"
#include "optim/state_tensors.h"
#include "parallel/handle_state.h"
#include "sys/topology.h"

#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/dispatch/part.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr const char* step_field = "step";

void check_parameters(const GroupOptions& groups, const std::vector<Part>& parameters) {
  std::size_t found = 0;
  for (const Part& part : parameters) found += groups.find(part.tensor) != nullptr ? 1 : 0;
  check(found == groups.size(),
        "checkpoint: expected an optimizer that was made with handle.parameters(), found one with "
        "other parameters ({})",
        groups.size() - found);
}

// Caches the fields of the last parameter, so that 8-bit and 16-bit formats are converted to
// float32 once for all fields.
class LatestFields {
 public:
  LatestFields(const torch::optim::Optimizer& optimizer, std::shared_ptr<optim::StateMemory> memory)
      : optimizer_(optimizer), memory_(std::move(memory)) {}

  const StateFields& of(const at::Tensor& parameter) {
    void* key = parameter.unsafeGetTensorImpl();
    if (key == key_) return fields_;
    if (memory_)
      for (const auto& [name, value] : fields_) memory_->has_used(value);
    fields_.clear();
    key_ = key;
    auto state = optimizer_.state().find(key);
    if (state != optimizer_.state().end()) fields_ = fields_of(optimizer_, *state->second);
    return fields_;
  }

 private:
  const torch::optim::Optimizer& optimizer_;
  const std::shared_ptr<optim::StateMemory> memory_;
  void* key_ = nullptr;
  StateFields fields_;
};

layout::TensorSlice slice_of(const std::string& field, const Part& parameter) {
  return field == step_field ? layout::whole_slice({}) : parameter.slice;
}

}  // namespace

std::vector<FilePart> optimizer_parts(const torch::optim::Optimizer& optimizer,
                                      const Handle& handle) {
  const GroupOptions groups(optimizer);
  std::vector<Part> parameters = handle.named_parameters();
  check_parameters(groups, parameters);
  // If the ranks' states differ, one rank writes all fields: fields of several ranks, or pieces of
  // one field, do not belong together.
  const PartKind kind =
      HandleState::of(handle).optimizers_may_differ() ? PartKind::buffer : PartKind::parameter;
  auto latest = std::make_shared<LatestFields>(optimizer, handle.state_memory());
  std::vector<FilePart> parts;
  for (const Part& parameter : parameters)
    for (const auto& [field, value] : latest->of(parameter.tensor))
      parts.push_back(
          {.part = {.name = optimizer_key(parameter.name, field),
                    .tensor = no_elements(value.scalar_type()),
                    .slice = slice_of(field, parameter),
                    .kind = kind},
           .values = [latest, tensor = parameter.tensor,
                      name = field] { return dispatch::values_of(latest->of(tensor).at(name)); },
           .goes_with_the_next = handle.state_memory() != nullptr});
  return parts;
}

struct OptimizerReading::Kept {
  Part parameter;
  const torch::optim::OptimizerOptions* options = nullptr;
  std::map<std::string, const TensorEntry*> entries;
  StateFields fields;

  void add(const std::string& field, at::Tensor tensor, std::vector<Part>& to_fill) {
    to_fill.push_back({.name = optimizer_key(parameter.name, field),
                       .tensor = tensor,
                       .slice = slice_of(field, parameter)});
    fields[field] = std::move(tensor);
  }

  // Returns an empty tensor with the parameter's memory layout, in ordinary memory or in the
  // handle's state memory.
  [[nodiscard]] at::Tensor empty_field(at::ScalarType dtype, optim::StateMemory* memory) const {
    // In grad mode this would be an activation of a block that checkpoint_activations() marked.
    at::NoGradGuard no_grad;
    at::Tensor like = dispatch::values_of(parameter.tensor).detach();
    if (memory != nullptr && like.is_cpu() && like.is_contiguous())
      return memory->zeros(like.numel(), dtype).view(like.sizes());
    at::Tensor field = at::empty_like(like, like.options().dtype(dtype).requires_grad(false));
    if (field.is_cpu()) optim::advise_huge_pages(field);
    return field;
  }
};

OptimizerReading::OptimizerReading(torch::optim::Optimizer& optimizer, const Handle& handle,
                                   PartsReader& file)
    : optimizer_(optimizer), handle_(handle), file_(file) {
  run_on_all_or_fail(file_.group(), [&] {
    const GroupOptions groups(optimizer_);
    std::vector<Part> parameters = handle_.named_parameters();
    check_parameters(groups, parameters);
    for (Part& parameter : parameters) {
      std::map<std::string, const TensorEntry*> entries;
      for_each_field(file_.by_name(), parameter.name,
                     [&](const std::string& field, std::size_t number) {
                       entries[field] = &file_.entries()[number];
                     });
      kept_.push_back({parameter, groups.find(parameter.tensor), std::move(entries), {}});
    }
    file_.in_file([&] { check(); });
  });
  check_all_known();
  read_steps();
}

OptimizerReading::~OptimizerReading() = default;

void OptimizerReading::check() const {
  for (const Kept& one : kept_) {
    check_input(one.options != nullptr || one.entries.empty(),
                "the checkpoint has the state of {}, which is not a parameter of this optimizer",
                escaped(one.parameter.name));
    if (one.options == nullptr) continue;
    std::map<std::string, FieldShape> shapes;
    for (const auto& [field, entry] : one.entries) shapes[field] = {entry->dtype, entry->shape};
    check_fields(one.parameter.name, one.parameter.tensor, one.parameter.slice.sizes, shapes,
                 *one.options);
  }
}

// Collective. Throws CollectiveFailure if the file has state of a parameter that no rank has.
void OptimizerReading::check_all_known() const {
  std::set<std::string> known;
  for (const Kept& one : kept_)
    for (const auto& [field, entry] : one.entries) known.insert(entry->name);
  known = names_of_all(file_.group(), known);
  run_on_all_or_fail(file_.group(), [&] {
    file_.in_file([&] {
      for (const TensorEntry& entry : file_.entries())
        check_input(known.contains(entry.name),
                    "the checkpoint has '{}', which belongs to no parameter of this model",
                    escaped(entry.name));
    });
  });
}

// Reads the step counts first, because they are small: errors in them are found before anything is
// changed.
void OptimizerReading::read_steps() {
  std::vector<Part> to_fill;
  for (Kept& one : kept_)
    if (one.entries.contains(step_field)) one.add(step_field, at::empty({}, at::kLong), to_fill);
  file_.read(to_fill);
  run_on_all_or_fail(file_.group(), [&] {
    file_.in_file([&] {
      for (const Kept& one : kept_)
        if (auto step = one.fields.find(step_field); step != one.fields.end())
          check_step(one.parameter.name, step->second);
    });
  });
}

// Collective. Returns true if every rank has room. The ranks of a host ask at the same time, so
// each of them counts on an equal share of the available memory, which excludes memory that the
// system would have to take from other processes.
bool OptimizerReading::has_room_beside_old_state() const {
  bool has_room = true;
  run_on_all_or_fail(file_.group(), [&] {
    if (optimizer_.state().empty()) return;
    std::int64_t bytes = 0;
    for (const Kept& one : kept_)
      for (const auto& [field, entry] : one.entries)
        bytes += slice_of(field, one.parameter).numel() *
                 static_cast<std::int64_t>(c10::elementSize(entry->dtype));
    const bool is_in_ordinary_memory = handle_.state_memory() == nullptr;
    const std::int64_t share = sys::memory_size().available / file_.group().size();
    has_room = is_in_ordinary_memory && bytes <= share / 2;
  });
  return std::ranges::min(numbers_of_all(file_.group(), {has_room}, part_call)) == 1;
}

void OptimizerReading::read(bool verify) {
  const bool reads_once = verify && has_room_beside_old_state();
  if (verify && !reads_once) file_.verify();
  if (!reads_once) optimizer_.state().clear();  // old and new state never exist together
  std::shared_ptr<optim::StateMemory> memory = handle_.state_memory();
  std::vector<Part> to_fill;
  run_on_all_or_fail(file_.group(), [&] {
    for (Kept& one : kept_)
      for (const auto& [field, entry] : one.entries)
        if (field != step_field)
          one.add(field, one.empty_field(entry->dtype, memory.get()), to_fill);
  });
  PartsReader::AfterEach after_each;
  if (memory) after_each = [&](const Part& part) { memory->has_used(part.tensor); };
  if (reads_once) {
    file_.read_and_verify(to_fill, after_each);
  } else {
    file_.read(to_fill, after_each);
  }
  optimizer_.state().clear();
  for (Kept& one : kept_)
    if (!one.fields.empty())
      optimizer_.state()[one.parameter.tensor.unsafeGetTensorImpl()] =
          make_state(*one.options, std::move(one.fields));
}

}  // namespace lockstep::checkpoint
