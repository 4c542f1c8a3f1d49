// PipelineState: what stands behind a Pipeline.
#pragma once

#include "parallel/composite_state.h"
#include "parallel/pipeline/execution.h"
#include "parallel/pipeline/own_parameters.h"
#include "parallel/pipeline/stage_sets.h"
#include "parallel/pipeline/ties.h"
#include "parallel/wait_time.h"

#include <lockstep/parallel/pipeline/pipeline.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep {

class PipelineState final : public parallel::CompositeState {
 public:
  PipelineState(const std::vector<Stage>& stages, plan::Schedule schedule, Group group,
                PipelineLoss loss, PipelineOptions options);

  struct Result {
    at::Tensor loss;  // on every rank, unless only outputs are asked for
    Tensors outputs;
  };
  // The loss of a training step is the mean of all pipelines that the strategy joins to this one,
  // unless `own_loss`. `fewest_rows`: as in BatchView.
  Result run(pipeline::StepKind kind, const Tensors& inputs, const Tensors& targets,
             bool own_loss = false,
             std::int64_t fewest_rows = std::numeric_limits<std::int64_t>::max());
  [[nodiscard]] const std::vector<int>& stages() const { return own_stages_; }
  // The ranks that have the first and the last stage.
  [[nodiscard]] int first_rank() const { return ranks_.front(); }
  [[nodiscard]] int last_rank() const { return ranks_.back(); }
  // Of this rank's stages.
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] const Pipeline::Measured& measured() const { return measured_; }

  void detach() override;
  [[nodiscard]] std::vector<NamedPart> named_parameters() const override;
  void zero_grad(bool set_to_none) override;
  [[nodiscard]] std::vector<NamedPart> state_parts() override;
  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] double seconds_waited() const override { return waited_; }
  [[nodiscard]] const Group& group() const override {
    return options_.all_ranks ? *options_.all_ranks : group_;
  }

 private:
  // A tensor of the whole model, as Python's state_dict() has it.
  struct Entry {
    std::vector<std::string> names;
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    int stage = 0;  // the first one that has it
  };

  void check_arguments(const std::vector<Stage>& stages) const;
  void check_ranks(const std::vector<Stage>& stages) const;
  void list_entries(const std::vector<Stage>& stages);
  void keep_own(const std::vector<Stage>& stages);
  void check_all_ranks() const;
  [[nodiscard]] std::uint64_t trained() const;
  // What a rank does at the moment, for messages.
  struct Doing {
    const char* part = "the beginning";
    std::optional<plan::Action> action = std::nullopt;
  };
  Result run(pipeline::StepKind kind, const pipeline::Batch& batch, bool own_loss, Doing& now);
  Result execute(pipeline::StepKind kind, const pipeline::Batch& batch, Doing& now);
  void fail(const Doing& now, const char* what) noexcept;
  // Whether a part belongs to this rank, and was not asked about before.
  using IsOwn = std::function<bool(const NamedPart&)>;
  [[nodiscard]] IsOwn own_parts() const;
  [[nodiscard]] at::Tensor on_all_ranks(const at::Tensor& loss, bool of_all_pipelines);
  [[nodiscard]] CallOptions call(const std::string& tag) const {
    return {.tag = tag, .timeout = options_.timeout};
  }

  const plan::Schedule schedule_;
  const std::vector<int> ranks_;             // of stages
  const std::shared_ptr<Group> kept_group_;  // here alone: parts refer to it
  Group& group_ = *kept_group_;
  const PipelineLoss loss_;
  const PipelineOptions options_;
  std::vector<int> own_stages_;
  std::map<int, pipeline::StageRun> runs_;
  std::optional<pipeline::StageSets> sets_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> entry_named_;  // in them
  std::optional<pipeline::Ties> ties_;
  std::optional<pipeline::OwnParameters> parameters_;
  std::unordered_map<std::uint64_t, pipeline::SpecBook> books_;  // by kind of batch
  Pipeline::Measured measured_;
  double waited_ = 0;
};

}  // namespace lockstep
