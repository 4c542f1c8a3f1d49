#include "parallel/pipeline/pipeline_state.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/visible.h"
#include "module/rank_check.h"
#include "module/state_entries.h"
#include "module/tensors.h"

#include <lockstep/plan/schedule_file.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep {
namespace {

using pipeline::StepKind;

// Kinds of batches of which sizes are remembered; then all are forgotten, on every rank alike.
constexpr std::size_t most_books = 64;

c10::Device device_of(const std::map<int, pipeline::StageRun>& stages) {
  for (const auto& [index, run] : stages)
    for (const at::Tensor& tensor : run.stage().module->parameters()) return tensor.device();
  return c10::kCPU;
}

}  // namespace

PipelineState::PipelineState(const std::vector<Stage>& stages, plan::Schedule schedule, Group group,
                             PipelineLoss loss, PipelineOptions options)
    : schedule_((plan::check_schedule(schedule), std::move(schedule))),
      forwards_(plan::forward_only(schedule_)),
      ranks_(plan::rank_of_stages(schedule_)),
      group_(std::move(group)),
      loss_(std::move(loss)),
      options_(std::move(options)) {
  check_arguments(stages);
  check_ranks(stages);
  list_entries(stages);
  ties_.emplace(stages, ranks_, group_.rank());
  keep_own(stages);
}

void PipelineState::check_arguments(const std::vector<Stage>& stages) const {
  check(static_cast<int>(stages.size()) == schedule_.stages,
        "Pipeline: expected {} stages, as schedule {} has, found {}", schedule_.stages,
        schedule_.name, stages.size());
  check(schedule_.rank_count() == group_.size(),
        "Pipeline: expected a schedule of {} ranks, as group {} has, found {} of {}", group_.size(),
        group_.name(), schedule_.name, schedule_.rank_count());
  check(loss_ != nullptr, "Pipeline: expected a loss, found none");
  for (const Stage& stage : stages)
    check(stage.module != nullptr && stage.forward != nullptr,
          "Pipeline: stage {}: expected a module and a function, found none", stage.name);
}

void PipelineState::check_ranks(const std::vector<Stage>& stages) const {
  std::vector<std::string> lines{
      formatted("schedule {}: {} stages, {} micro-batches, {:016x}", schedule_.name,
                schedule_.stages, schedule_.micro_batches, fingerprint(schedule_text(schedule_)))};
  for (const Stage& stage : stages) {
    lines.push_back("stage " + stage.name);
    const auto tensors = modules::tensors_of(*stage.module);
    modules::check_ordinary(tensors, "Pipeline");
    for (std::string& line : modules::lines_of(tensors)) lines.push_back(std::move(line));
  }
  modules::check_same_lines(group_, lines, call("Pipeline"));
}

// Two tensors of one name would be one in a state dict.
void PipelineState::check_new_name(const std::string& name, const Stage& stage) const {
  for (const Entry& entry : entries_)
    check(std::ranges::find(entry.names, name) == entry.names.end(),
          "Pipeline: stage {}: expected other names than those of earlier stages, found a second "
          "tensor {}; stage_of() names tensors by their stage",
          stage.name, name);
}

void PipelineState::list_entries(const std::vector<Stage>& stages) {
  std::map<const at::TensorImpl*, std::size_t> places;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (const modules::StateEntry& entry : modules::state_entries(*stages[stage].module)) {
      const auto [place, is_new] =
          places.emplace(entry.tensor.unsafeGetTensorImpl(), entries_.size());
      if (is_new)
        entries_.push_back(
            {{}, entry.tensor.sizes().vec(), entry.tensor.scalar_type(), static_cast<int>(stage)});
      auto& names = entries_[place->second].names;
      for (const std::string& name : entry.names)
        if (std::ranges::find(names, name) == names.end()) {
          check_new_name(name, stages[stage]);
          names.push_back(name);
        }
    }
}

void PipelineState::keep_own(const std::vector<Stage>& stages) {
  std::set<const at::TensorImpl*> had;
  std::vector<NamedPart> parameters;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (ranks_[i] != group_.rank()) continue;
    const int stage = static_cast<int>(i);
    own_stages_.push_back(stage);
    runs_.emplace(stage, pipeline::StageRun(stages[i]));
    if (options_.strategy) handles_.emplace(stage, options_.strategy(*stages[i].module));
    for (NamedPart& part : parameters_of(stage))
      if (had.insert(part.tensor.unsafeGetTensorImpl()).second && !ties_->is_elsewhere(part.tensor))
        parameters.push_back(std::move(part));
  }
  check_all_ranks();
  parameters_.emplace(std::move(parameters), group_);
}

void PipelineState::check_all_ranks() const {
  const int all = group().size();
  for (const auto& [stage, handle] : handles_) {
    const int copies = handle.group().size();
    check(copies == 1 || options_.all_ranks.has_value(),
          "Pipeline: stage {} is trained by a strategy of {} ranks: expected PipelineOptions"
          "::all_ranks, the group of all ranks that have parts of the model (mesh.group()), found "
          "none",
          runs_.at(stage).stage().name, copies);
    check(all == copies * group_.size(),
          "Pipeline: expected all_ranks of {} ranks, {} of each of {} pipelines (stage {} is "
          "trained by a strategy of so many), found {}",
          copies * group_.size(), group_.size(), copies, runs_.at(stage).stage().name, all);
  }
  check(!handles_.empty() || all == group_.size(),
        "Pipeline: all_ranks has {} ranks, the pipeline {}: expected a strategy that joins several "
        "pipelines, found none",
        all, group_.size());
}

// As the strategy of the stage gives them, or whole.
std::vector<NamedPart> PipelineState::parameters_of(int stage) const {
  const Stage& own = runs_.at(stage).stage();
  const std::vector<NamedParameter> whole = unique_parameters(*own.module);
  std::vector<NamedPart> list;
  if (const auto handle = handles_.find(stage); handle != handles_.end()) {
    list = handle->second.named_parameters();
    const bool is_divided = std::ranges::any_of(
        list, [](const NamedPart& part) { return dispatch::parts_of(part.tensor) != nullptr; });
    for (const NamedParameter& parameter : whole)
      check(!is_divided || !ties_->has(parameter.tensor),
            "Pipeline: stage {}: {} is tied to stages of other ranks: expected a strategy that "
            "leaves it whole, found one that divides it",
            own.name, parameter.name);
    return list;
  }
  for (const auto& [name, tensor, aliases] : whole)
    list.push_back({name, tensor, aliases, layout::whole_slice(tensor.sizes())});
  return list;
}

PipelineState::Result PipelineState::run(StepKind kind, const Tensors& inputs,
                                         const Tensors& targets) {
  const int first = ranks_.front(), last = ranks_.back();
  const bool is_first = first == group_.rank(), is_last = last == group_.rank();
  const pipeline::Batch batch(
      group_, kind,
      {is_first ? &inputs : nullptr, is_last && kind != StepKind::forward ? &targets : nullptr},
      schedule_.micro_batches, first, last, options_.timeout);
  try {
    ties_->send_values(group_, options_.timeout);
    Result result = execute(kind, batch);
    if (kind == StepKind::train) {
      if (paused_ == 0) ties_->send_gradients(group_, options_.timeout);
      parameters_->give_gradients();
    }
    if (kind != StepKind::forward) result.loss = on_all_ranks(result.loss);
    return result;
  } catch (...) {
    reset_after_failure();
    throw;
  }
}

PipelineState::Result PipelineState::execute(StepKind kind, const pipeline::Batch& batch) {
  if (books_.size() >= most_books && !books_.contains(batch.kind())) books_.clear();
  const bool is_new = !books_.contains(batch.kind());
  const plan::Schedule& schedule = kind == StepKind::train ? schedule_ : forwards_;
  pipeline::Mailbox mailbox(
      group_, schedule, books_[batch.kind()],
      {.tells_specs = is_new, .device = device_of(runs_), .timeout = options_.timeout});
  pipeline::Execution execution(
      schedule, batch, kind, mailbox,
      {runs_, loss_, [this](int stage, bool last) { before_gradients(stage, last); }});
  if (kind == StepKind::train)
    for (auto& [stage, handle] : handles_) unsynchronized_[stage].emplace(handle.no_sync());
  std::optional<plan::Action> now;
  try {
    parameters_->take_gradients();
    execution.run(schedule.ranks[static_cast<std::size_t>(group_.rank())], now);
  } catch (const std::exception& error) {
    fail(now, error.what());
    throw;
  } catch (...) {
    fail(now, "an exception that is no std::exception");
    throw;
  }
  unsynchronized_.clear();
  if (kind == StepKind::train) {
    measured_ = execution.measured(own_stages_);
    waited_ += measured_.seconds - measured_.busy;
  }
  return {execution.loss(), kind == StepKind::forward ? execution.outputs() : Tensors()};
}

// The last backward of a stage averages the gradients of all of them over its strategy's ranks.
void PipelineState::before_gradients(int stage, bool last) {
  if (last && paused_ == 0) unsynchronized_.erase(stage);
}

void PipelineState::fail(const std::optional<plan::Action>& now, const char* what) noexcept {
  try {
    const std::string action = now ? plan::text_of(*now) : "the end";
    group_.abort(formatted("{} of the pipeline failed: {}", action, visible_line(what, 2000)));
  } catch (...) {
    // The group is dead then already.
  }
}

void PipelineState::reset_after_failure() noexcept {
  unsynchronized_.clear();
  books_.clear();
  for (auto& [stage, run] : runs_) run.clear();
}

at::Tensor PipelineState::on_all_ranks(const at::Tensor& loss) {
  at::Tensor told = at::zeros({2}, at::kDouble);
  if (loss.defined()) {
    told[0] = loss.item<double>();
    told[1] = static_cast<double>(loss.scalar_type());
  }
  group_.broadcast(told, ranks_.back(), call("loss of a pipeline")).wait();
  const double* numbers = told.const_data_ptr<double>();
  return at::full({}, numbers[0],
                  at::TensorOptions(static_cast<at::ScalarType>(static_cast<int>(numbers[1]))));
}

void PipelineState::detach() {
  handles_.clear();
  runs_.clear();
}

std::vector<NamedPart> PipelineState::named_parameters() const { return parameters_->parts(); }

void PipelineState::zero_grad(bool set_to_none) {
  for (auto& [stage, handle] : handles_) handle.zero_grad(set_to_none);
  parameters_->zero_grad(set_to_none);
  ties_->forget_gradients();
}

std::map<std::string, at::Tensor> PipelineState::state_dict() {
  at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> own, all;
  for (const auto& [stage, run] : runs_) {
    const auto handle = handles_.find(stage);
    own.merge(handle == handles_.end() ? lockstep::state_dict(*run.stage().module)
                                       : handle->second.state_dict());
  }
  for (const Entry& entry : entries_) {
    const int owner = ranks_[static_cast<std::size_t>(entry.stage)];
    at::Tensor tensor =
        owner == group_.rank()
            ? own.at(entry.names.front()).detach().clone(at::MemoryFormat::Contiguous)
            : at::empty(entry.sizes, at::TensorOptions(entry.dtype).device(device_of(runs_)));
    group_.broadcast(tensor, owner, call(entry.names.front())).wait();
    for (const std::string& name : entry.names) all[name] = tensor;
  }
  return all;
}

void PipelineState::load_state_dict(const std::map<std::string, at::Tensor>& tensors) {
  std::set<std::string> known;
  for (const Entry& entry : entries_) known.insert(entry.names.begin(), entry.names.end());
  for (const auto& [name, tensor] : tensors)
    check_input(known.contains(name), "{}: expected a tensor of the model, found an unknown name",
                name);
  std::vector<modules::Assignment> assignments;
  for (const auto& [stage, run] : runs_) {
    std::map<std::string, at::Tensor> own;
    for (const modules::StateEntry& entry : modules::state_entries(*run.stage().module))
      for (const std::string& name : entry.names)
        if (const auto found = tensors.find(name); found != tensors.end()) own.insert(*found);
    if (const auto handle = handles_.find(stage); handle != handles_.end()) {
      handle->second.load_state_dict(own);
      continue;
    }
    for (modules::Assignment& assignment : modules::assignments_of(*run.stage().module, own))
      assignments.push_back(std::move(assignment));
  }
  at::NoGradGuard no_grad;
  for (const auto& [tensor, values] : assignments) tensor.detach().copy_(values);
}

PipelineState::IsOwn PipelineState::own_parts() const {
  std::set<std::string> had;  // and what other ranks have
  for (const Entry& entry : entries_)
    if (ranks_[static_cast<std::size_t>(entry.stage)] != group_.rank())
      had.insert(entry.names.front());
  return [had = std::move(had)](const NamedPart& part) mutable {
    return had.insert(part.name).second;
  };
}

std::vector<NamedPart> PipelineState::parts_of(int stage, const IsOwn& is_own) {
  std::vector<NamedPart> list;
  const auto add = [&](const NamedPart& part) {
    if (is_own(part)) list.push_back(part);
  };
  if (const auto handle = handles_.find(stage); handle != handles_.end()) {
    std::ranges::for_each(handle->second.state_parts(), add);
    return list;
  }
  // Buffers too are this rank's alone.
  for (const modules::StateEntry& entry : modules::state_entries(*runs_.at(stage).stage().module))
    add({entry.names.front(),
         entry.tensor.detach(),
         {entry.names.begin() + 1, entry.names.end()},
         layout::whole_slice(entry.tensor.sizes())});
  return list;
}

std::vector<NamedPart> PipelineState::state_parts() {
  const IsOwn is_own = own_parts();
  std::vector<NamedPart> list;
  for (const int stage : own_stages_)
    for (NamedPart& part : parts_of(stage, is_own)) list.push_back(std::move(part));
  return list;
}

void PipelineState::load_state_parts(const std::function<void(const NamedPart&)>& read) {
  load_stages(0, own_parts(), read);
}

// The next stage inside the last call of this one: what is written in the last call of all is
// written before any stage's handle looks at its parts.
void PipelineState::load_stages(std::size_t from, const IsOwn& is_own,
                                const std::function<void(const NamedPart&)>& read) {
  if (from == own_stages_.size()) return;
  const int stage = own_stages_[from];
  const auto handle = handles_.find(stage);
  std::size_t left = handle == handles_.end() ? 0 : handle->second.state_parts().size();
  if (left == 0) {
    for (const NamedPart& part : parts_of(stage, is_own)) read(part);
    return load_stages(from + 1, is_own, read);
  }
  handle->second.load_state_parts([&](const NamedPart& part) {
    if (is_own(part)) read(part);
    if (--left == 0) load_stages(from + 1, is_own, read);
  });
}

HandleMemory PipelineState::memory() const {
  HandleMemory memory;
  for (const auto& [stage, handle] : handles_) {
    const HandleMemory own = handle.memory();
    memory.shards += own.shards;
    memory.whole += own.whole;
    memory.gradients += own.gradients;
    memory.in_flight += own.in_flight;
    memory.peak_in_flight += own.peak_in_flight;
    memory.pooled += own.pooled;
    memory.offloaded += own.offloaded;
  }
  if (!handles_.empty()) return memory;
  for (const NamedPart& part : parameters_->parts()) {
    memory.whole += static_cast<std::int64_t>(part.tensor.nbytes());
    const at::Tensor& gradient = part.tensor.grad();
    if (gradient.defined()) memory.gradients += static_cast<std::int64_t>(gradient.nbytes());
  }
  return memory;
}

}  // namespace lockstep
