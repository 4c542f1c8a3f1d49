#include "measure/step.h"

#include "apps/bench/spread.h"
#include "apps/bench/together.h"
#include "base/check.h"
#include "base/text.h"
#include "matmul/matmul.h"
#include "module/checks.h"
#include "parallel/sharded/checks.h"

#include <lockstep/base/deadline.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/state.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <set>
#include <utility>

namespace lockstep::bench {
namespace {

constexpr double equal_losses = 1e-4;  // relative

struct MeasuredMode {
  std::string name;
  std::unique_ptr<StepWork> work;
  std::vector<double> seconds = {};
  std::int64_t bytes = 0;
  // One value per step of this rank.
  std::vector<double> forward = {}, backward = {}, update = {};
};

void take_turn(const Group& world, MeasuredMode& mode, int steps) {
  std::vector<double> own(static_cast<std::size_t>(steps));
  for (double& seconds : own) {
    seconds = mode.work->step();
    const StepParts& parts = mode.work->training().parts();
    mode.forward.push_back(parts.forward);
    mode.backward.push_back(parts.backward);
    mode.update.push_back(parts.update);
  }
  auto slowest = apps::largest_of_ranks(world, own);
  mode.seconds.insert(mode.seconds.end(), slowest.begin(), slowest.end());
}

std::vector<MeasuredMode> modes_of(const StepOptions& options, bool fused, const Group& world) {
  auto names = options.modes;
  if (names.empty()) names.assign(step_modes().begin(), step_modes().end());
  std::vector<MeasuredMode> modes;
  for (const std::string& name : names) {
    StepWorkOptions told{.model = options.model,
                         .size = options.size.value_or(usual_size(options.model)),
                         .mode = name,
                         .fused = fused};
    modes.push_back({name, std::make_unique<StepWork>(told, world)});
  }
  return modes;
}

void run_rounds(std::vector<MeasuredMode>& modes, const StepOptions& options, const Group& world) {
  for (MeasuredMode& mode : modes) {
    // Warm-up: the first step after the construction of the other modes is not representative.
    take_turn(world, mode, 1);
    for (auto* kept : {&mode.seconds, &mode.forward, &mode.backward, &mode.update}) kept->clear();
  }
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.rounds); ++round)
    for (std::size_t i = 0; i < modes.size(); ++i)
      take_turn(world, modes[(i + round) % modes.size()], options.steps);
  for (MeasuredMode& mode : modes)
    mode.bytes =
        std::ranges::max(modules::numbers_of_all(world, {mode.work->training().held_bytes()}));
}

// Checks that modes have equal losses. Modes that train on one rank's batch and modes that train on
// all batches agree only in the first step, before their updates differ. Mode tensor has the losses
// of rank 0.
void check_losses(const std::vector<MeasuredMode>& modes, bool is_root) {
  for (const MeasuredMode& mode : modes)
    for (const MeasuredMode& other : modes) {
      if (!is_root && (mode.name == "tensor") != (other.name == "tensor")) continue;
      bool alone = trains_on_one_batch(mode.name) != trains_on_one_batch(other.name);
      const auto &own = mode.work->losses(), &others = other.work->losses();
      for (std::size_t step = 0; step < (alone ? 1 : own.size()); ++step)
        if (!(std::abs(own[step] - others[step]) <= equal_losses * std::abs(others[step])))
          throw Error(
              formatted("step: expected equal losses at step {}, found {} in mode {} "
                        "and {} in mode {}",
                        step, own[step], mode.name, others[step], other.name));
    }
}

void print_json(const StepOptions& options, const std::string& optimizer, int ranks,
                const MeasuredMode& mode) {
  apps::Spread seconds = apps::spread_of(mode.seconds);
  ModelSize size = options.size.value_or(usual_size(options.model));
  nlohmann::ordered_json row{{"bench", "step"},      {"model", options.model},
                             {"width", size.width},  {"depth", size.depth},
                             {"mode", mode.name},    {"optimizer", optimizer},
                             {"ranks", ranks},       {"threads", options.threads},
                             {"min_s", seconds.min}, {"p25_s", seconds.p25},
                             {"p50_s", seconds.p50}, {"p75_s", seconds.p75},
                             {"max_s", seconds.max}, {"steps", mode.seconds.size()},
                             {"bytes", mode.bytes},  {"losses", mode.work->losses()}};
  row["products"] = matmul::library();
  row["cpu_forward_s"] = apps::spread_of(mode.forward).p50;
  row["cpu_backward_s"] = apps::spread_of(mode.backward).p50;
  row["cpu_update_s"] = apps::spread_of(mode.update).p50;
  print_to(stdout, "{}\n", row.dump());
}

void print_table(const StepOptions& options, const std::string& optimizer, int ranks,
                 const std::vector<MeasuredMode>& modes) {
  ModelSize size = options.size.value_or(usual_size(options.model));
  print_to(
      stdout,
      "step: model={} {}x{} ranks={} threads={} rounds={} steps={}; AdamW {}; products by {}\n",
      options.model, size.width, size.depth, ranks, options.threads, options.rounds, options.steps,
      optimizer, matmul::library());
  print_to(stdout, "{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}   first losses\n", "seconds", "min",
           "p25", "p50", "p75", "max", "bytes");
  for (const MeasuredMode& mode : modes) {
    apps::Spread seconds = apps::spread_of(mode.seconds);
    print_to(stdout, "{:<18}", mode.name);
    for (double value : {seconds.min, seconds.p25, seconds.p50, seconds.p75, seconds.max})
      print_to(stdout, "{:>10.4f}", value);
    print_to(stdout, "{:>12}   {:.6f} {:.6f}\n", format_bytes(mode.bytes),
             mode.work->losses().at(0), mode.work->losses().at(1));
  }
  print_to(stdout, "{:<18}{:>10}{:>10}{:>10}\n", "cpu of rank 0, p50", "forward", "backward",
           "update");
  for (const MeasuredMode& mode : modes)
    print_to(stdout, "{:<18}{:>10.4f}{:>10.4f}{:>10.4f}\n", mode.name,
             apps::spread_of(mode.forward).p50, apps::spread_of(mode.backward).p50,
             apps::spread_of(mode.update).p50);
  print_to(stdout, "\n");
}

// Returns the bytes of the distinct storages of `tensors`. Undefined tensors have none.
std::int64_t storage_bytes(std::span<const at::Tensor> tensors) {
  std::set<const void*> seen;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) continue;
    bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
  }
  return bytes;
}

// Returns the state of an Adam or AdamW optimizer, torch's or ours: averages, squares and masters.
std::vector<at::Tensor> adam_state(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (const auto& [parameter, state] : optimizer.state()) {
    if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(state.get())) {
      tensors.push_back(adam->exp_avg());
      tensors.push_back(adam->exp_avg_sq());
    }
    if (const auto* beside = dynamic_cast<const optim::ExtraState*>(state.get()))
      tensors.push_back(beside->master_parameter);
  }
  return tensors;
}

constexpr double learning_rate = 1e-4;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        bool fused) {
  torch::optim::AdamWOptions options(learning_rate);
  if (fused) return std::make_unique<optim::AdamW>(parameters, options);
  return std::make_unique<torch::optim::AdamW>(parameters, options);
}

constexpr std::array<std::string_view, 7> modes{
    "none", "ddp", "optimizer", "gradients", "full", "full-node-shared", "tensor"};

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

constexpr std::size_t kept_losses = 5;

BenchModel seeded_model(const StepWorkOptions& options) {
  torch::manual_seed(1);
  return make_bench_model(options.model, options.size);
}

}  // namespace

void measure_steps(const StepOptions& options, const Group& world) {
  for (const std::string& optimizer : options.optimizers) {
    auto modes = modes_of(options, optimizer == "fused", world);
    run_rounds(modes, options, world);
    check_losses(modes, world.is_root());
    if (!world.is_root()) continue;
    if (!options.json) print_table(options, optimizer, world.size(), modes);
    if (options.json)
      for (const MeasuredMode& mode : modes) print_json(options, optimizer, world.size(), mode);
    std::fflush(stdout);
  }
}

std::span<const std::string_view> step_modes() { return modes; }

std::span<const std::string_view> memory_modes() {
  return std::span(modes).first(modes.size() - 1);
}

bool trains_on_one_batch(std::string_view mode) { return mode == "none" || mode == "tensor"; }

std::optional<ShardOptions> shard_options_of(std::string_view mode,
                                             const std::vector<std::string>& units) {
  if (mode == "ddp" || trains_on_one_batch(mode)) return std::nullopt;
  ShardOptions options;
  options.units.assign(units.begin(), units.end());
  if (mode == "optimizer") {
    options.level = ShardLevel::optimizer;
  } else if (mode == "gradients") {
    options.level = ShardLevel::gradients;
  } else if (mode == "full-node-shared") {
    options.storage = ShardStorage::node_shared;
  } else if (mode != "full") {
    throw BadInput(unknown_name("mode", mode, modes));
  }
  return options;
}

double expected_bytes(std::string_view mode, int element_bytes, int ranks,
                      std::int64_t parameters) {
  check(element_bytes == 4 || element_bytes == 2,
        "expected bytes: an element must have 4 or 2 bytes, found {}", element_bytes);
  sharded::ParameterSize size{.elements = parameters,
                              .own_bytes = element_bytes,
                              .computed_bytes = element_bytes,
                              .reduced_bytes = element_bytes};
  // Two averages, and a float32 master for shorter dtypes.
  double state = element_bytes == 4 ? 8 : 12;
  auto options = shard_options_of(mode, {});
  if (!options) return static_cast<double>(parameters) * (2 * element_bytes + state);
  return static_cast<double>(sharded::memory_of(size, ranks, *options).kept) +
         static_cast<double>(parameters) * state / ranks;
}

Training::Training(BenchModel model, std::string_view mode, bool fused, const Group& world)
    : model_(std::move(model)), batches_(batches_of_rank(mode == "tensor" ? 0 : world.rank())) {
  if (mode == "ddp") ddp_.emplace(model_.module, world);
  if (auto options = shard_options_of(mode, model_.units))
    sharded_.emplace(fully_shard(model_.module, world, *options));
  if (mode == "tensor")
    tensor_.emplace(parallelize(model_.module, Mesh(world, {{"tp", -1}}), {.tensor = model_.plan}));
  optimizer_ = make_optimizer(parameters(), fused);
}

std::vector<at::Tensor> Training::parameters() const {
  if (sharded_) return sharded_->parameters();
  if (tensor_) return tensor_->parameters();
  return ddp_ ? ddp_->parameters() : model_.module->parameters();
}

void Training::zero_grad() {
  if (sharded_) return sharded_->zero_grad();
  if (tensor_) return tensor_->zero_grad();
  ddp_ ? ddp_->zero_grad() : model_.module->zero_grad();
}

double Training::step() {
  double begin = thread_seconds();
  auto lap = [&] {
    double now = thread_seconds();
    return now - std::exchange(begin, now);
  };
  zero_grad();
  at::Tensor loss = model_.loss(batches_);
  parts_.forward = lap();
  loss.backward();
  parts_.backward = lap();
  optimizer_->step();
  parts_.update = lap();
  return loss.item<double>();
}

std::int64_t Training::held_bytes() const {
  std::vector<at::Tensor> tensors = adam_state(*optimizer_);
  if (sharded_) return storage_bytes(tensors) + sharded_->memory().total();
  for (const at::Tensor& parameter : parameters()) {
    tensors.push_back(parameter);
    tensors.push_back(parameter.grad());
  }
  return storage_bytes(tensors);
}

std::int64_t Training::unit_bytes() const {
  if (!sharded_) return 0;
  HandleMemory memory = sharded_->memory();
  return memory.in_flight + memory.pooled;
}

std::int64_t Training::peak_unit_bytes() const {
  return sharded_ ? sharded_->memory().peak_in_flight : 0;
}

void Training::reset_peak() {
  if (sharded_) sharded_->reset_peak_memory();
}

bool Training::is_fused() const {
  return dynamic_cast<const optim::AdamW*>(optimizer_.get()) != nullptr;
}

StepWork::StepWork(const StepWorkOptions& options, const Group& world)
    : training_(seeded_model(options), options.mode, options.fused, world) {
  for (int step = 0; step < uncounted_steps; ++step) (void)this->step();
}

double StepWork::step() {
  auto start = Clock::now();
  double loss = training_.step();
  auto end = Clock::now();
  if (losses_.size() < kept_losses) losses_.push_back(loss);
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace lockstep::bench
