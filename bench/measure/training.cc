#include "measure/training.h"

#include "base/check.h"
#include "base/text.h"

#include "parallel/sharded/checks.h"

#include <lockstep/optim/adamw.h>

#include <torch/optim/adamw.h>

#include <ctime>

#include <lockstep/base/deadline.h>
#include <lockstep/optim/state.h>
#include <torch/utils.h>
#include <array>
#include <set>
#include <utility>

namespace lockstep::bench {
namespace {

constexpr std::size_t kept_losses = 5;

BenchModel seeded_model(const StepWorkOptions& options) {
  torch::manual_seed(1);
  return make_bench_model(options.model, options.size);
}

// Returns the bytes of the distinct storages of `tensors`, each counted once and in full.
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

}  // namespace

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
