// A rank of an elastic run on the simulated accelerator: trains on the device that init() chooses,
// and writes its parameters after the last step to OUT/RANK.safetensors. Without an agent, trains
// alone.
//
// usage: elastic_rank STRATEGY LOSSES OUT
//        elastic_rank train WORDS...      as `lockstep train WORDS...`
//
//   STRATEGY  ddp, optimizer, gradients, full, slots or tp
//   LOSSES    ROUND.RANK.STEP.PLACE,...: this rank kills itself in this step, `before` backward()
//             or `after` it
//
// Exits with 3 if the machine has reported a fault.
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/device.h>
#include <lockstep/elastic/elastic.h>
#include <lockstep/elastic/slot_gradients.h>
#include <lockstep/parallel/parallelize.h>

#include "accelerator/small_training.h"
#include "support/accelerator/device.h"
#include "support/accelerator/machine.h"
#include "train/program.h"
#include "train/tasks/known.h"

#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr std::int64_t steps_of_run = 8;
constexpr std::int64_t slots_of_step = 4;

struct Words {
  std::string strategy, losses;
  std::filesystem::path out;
};

Handle handle_for(const std::string& strategy, models::Mlp& model, const Group& group) {
  if (strategy == "tp") return parallelize(model, Mesh(group, {{"dp", -1}, {"tp", 2}}));
  const std::map<std::string, Level> levels{{"ddp", std::nullopt},
                                            {"slots", std::nullopt},
                                            {"optimizer", ShardLevel::optimizer},
                                            {"gradients", ShardLevel::gradients},
                                            {"full", ShardLevel::full}};
  return handle_of(levels.at(strategy), model, group);
}

// One round. All ranks train on the same rows, so that averages are exact for 1, 2 and 4 ranks;
// slots are different rows.
class TrainingRound {
 public:
  TrainingRound(ElasticState& state, const Words& words)
      : state_(state),
        words_(words),
        model_(model_on(lockstep::device())),
        handle_(handle_for(words.strategy, model_, state.group())),
        adamw_(handle_.parameters(), torch::optim::AdamWOptions(0.01)),
        done_(at::zeros({4}, at::TensorOptions(lockstep::device()))) {
    if (words.strategy == "slots")
      slots_.emplace(state.group(), slots_of_step, handle_.parameters());
    state.attach(handle_, adamw_, {.tensors = {{"done", done_}}});
    if (done_[3].item<double>() != static_cast<double>(state.step()))
      throw std::runtime_error("the tensor of the program is not that of the commit");
  }

  void run() {
    while (state_.step() < steps_of_run) step();
    checkpoint::write_safetensors(
        words_.out / (std::to_string(state_.group().rank()) + ".safetensors"), on_cpu(handle_));
  }

 private:
  void step() {
    handle_.zero_grad();
    end_if_lost("before");
    if (slots_)
      take_slots();
    else
      loss_of(model_, static_cast<int>(state_.step())).backward();
    end_if_lost("after");
    adamw_.step();
    done_ += 1;
    state_.commit();
  }

  void take_slots() {
    {
      const auto alone = handle_.no_sync();
      for (std::int64_t slot = slots_->begin(); slot < slots_->end(); ++slot) {
        loss_of(model_, static_cast<int>(slots_of_step * state_.step() + slot)).backward();
        slots_->take(slot);
      }
    }
    slots_->reduce(slots_of_step);
  }

  void end_if_lost(const std::string& place) {
    const std::string now = std::to_string(state_.round()) + '.' +
                            std::to_string(state_.group().rank()) + '.' +
                            std::to_string(state_.step()) + '.' + place;
    if (words_.losses.find(now) != std::string::npos) (void)std::raise(SIGKILL);
  }

  ElasticState& state_;
  const Words& words_;
  models::Mlp model_;
  Handle handle_;
  torch::optim::AdamW adamw_;
  at::Tensor done_;  // one per step
  std::optional<SlotGradients> slots_;
};

int reported_faults() {
  auto& machine = Machine::get();
  for (int index = 0; index < device_count; ++index)
    machine.synchronize_device(index, "end of the run");
  const auto reports = machine.take_reports();
  for (const Report& report : reports) std::cerr << report << '\n';
  return static_cast<int>(reports.size());
}

void train_by_elastic(const Words& words) {
  ElasticState state({.out = words.out / "checkpoints",
                      .save_every = 3,
                      .ranks_of_a_model = words.strategy == "tp" ? 2 : 1});
  (void)elastic(state, [&](ElasticState& round) { TrainingRound(round, words).run(); });
}

int train_by_trainer(const std::vector<std::string>& words) {
  const std::vector<std::unique_ptr<train::Task>> tasks = train::known_tasks();
  std::vector<train::Task*> known;
  for (const std::unique_ptr<train::Task>& task : tasks) known.push_back(task.get());
  return train::run_program("train", "train", known, words);
}

}  // namespace

int main(int count, char** arguments) try {
  if (count < 4) return 2;
  (void)device(0);  // registers the accelerator, which init() then finds
  int code = 0;
  if (arguments[1] == std::string("train"))
    code = train_by_trainer({arguments + 2, arguments + count});
  else
    train_by_elastic({arguments[1], arguments[2], arguments[3]});
  return reported_faults() == 0 ? code : 3;
} catch (const std::exception& error) {
  std::fprintf(stderr, "elastic_rank: %s\n", error.what());
  return 1;
}
