#include <lockstep/parallel/threads/data_parallel.h>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/backend/accelerator.h"
#include "dispatch/thread_generator.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"
#include "parallel/handle_state.h"
#include "parallel/threads/replica_step.h"
#include "sys/topology.h"

#include <lockstep/comm/local.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::threads {
namespace {

std::int64_t rows_of(std::span<const at::Tensor> inputs) {
  std::int64_t rows = -1;
  std::size_t first = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i].defined(), "DataParallel: input {} is an undefined tensor", i);
    check(!inputs[i].requires_grad(),
          "DataParallel: input {} requires a gradient; DataParallel computes those of parameters "
          "only: pass a detach()",
          i);
    if (inputs[i].dim() == 0) continue;
    if (rows < 0) {
      rows = inputs[i].size(0);
      first = i;
    }
    check(inputs[i].size(0) == rows,
          "DataParallel: input {} has {} rows, and input {} has {}: all of a mini-batch must have "
          "equally many",
          first, rows, i, inputs[i].size(0));
  }
  check(rows >= 0, "DataParallel: expected an input with rows to divide, found none (inputs: {})",
        inputs.size());
  check(rows > 0, "DataParallel: the mini-batch has no rows");
  return rows;
}

// Returns, for each device, its rows of every input, as views; empty for a device without rows.
// Throws InvalidArgument for inputs of different lengths, no inputs, inputs without rows, or inputs
// that require grad.
std::vector<std::vector<at::Tensor>> scatter(std::span<const at::Tensor> inputs, int devices) {
  const std::int64_t rows = rows_of(inputs);
  std::vector<std::vector<at::Tensor>> shares(static_cast<std::size_t>(devices));
  for (std::int64_t device = 0; device < devices; ++device) {
    const std::int64_t uneven = rows % devices;
    const std::int64_t count = rows / devices + (device < uneven ? 1 : 0);
    const std::int64_t begin = rows / devices * device + std::min(device, uneven);
    if (count == 0) continue;
    for (const at::Tensor& input : inputs)
      shares[static_cast<std::size_t>(device)].push_back(
          input.dim() == 0 ? input : input.narrow(0, begin, count));
  }
  return shares;
}

// The index of this thread's device; -1 in other threads.
thread_local int device_of_thread = -1;

const std::shared_ptr<torch::nn::Module>& not_null(
    const std::shared_ptr<torch::nn::Module>& model) {
  check(model != nullptr, "DataParallel: the model must not be null");
  return model;
}

std::uint64_t draw_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

bool is_abort(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Aborted&) {
    return true;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void throw_failed(const std::string& text, const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (...) {
    std::throw_with_nested(DeviceFailed(text));
  }
}

// The state of a DataParallel.
class ReplicaState final : public parallel::WholeModuleState {
 public:
  ReplicaState(std::shared_ptr<torch::nn::Module> model, std::vector<ComputeDevice> devices,
               const DataParallelOptions& options)
      : WholeModuleState(*not_null(model)),
        model_(std::move(model)),
        team_(std::move(devices)),
        replicas_(make_replicas(model_, team_.devices(), options)),
        watch_(*model_, {}, "DataParallel was made", options.broadcast_buffers) {
    modules::ModuleTensors tensors = modules::tensors_of(*model_);
    parameters_ = tensors.parameters;
    for (const NamedParameter& parameter : tensors.parameters) names_.push_back(parameter.name);
    for (const NamedTensor& buffer : tensors.buffers) names_.push_back(buffer.name);
    for (int i = 0; i < team_.size(); ++i) {
      const Replica& replica = replicas_[static_cast<std::size_t>(i)];
      modules_.push_back(replica.module);
      steps_.push_back(std::make_unique<ReplicaStep>(
          replica, names_, team_.devices()[static_cast<std::size_t>(i)].device,
          options.broadcast_buffers));
    }
    join_groups();
    if (team_.size() == 1) return;
    dispatch::ThreadGenerator::prepare();
    std::vector<at::Tensor> trained = replicas_.front().parameters;
    std::erase_if(trained, [](const at::Tensor& one) { return !one.requires_grad(); });
    hooks_ = std::make_unique<parallel::GradientHooks>(std::move(trained),
                                                       [this](int i) { on_gradient(i); });
  }

  using Loss = std::function<DeviceLoss(int device, std::span<const at::Tensor> rows)>;
  using Forward = std::function<at::Tensor(int device, std::span<const at::Tensor> rows)>;

  at::Tensor backward(const Loss& loss, const std::vector<at::Tensor>& inputs) {
    for (auto& each : steps_) each->clear();
    // Sets earlier gradients aside until publish(), because they must not be weighted by rows.
    std::vector<at::Tensor> before = step(0).take_gradients();
    try {
      compute(inputs, [&](int i, std::span<const at::Tensor> rows) {
        step(i).compute([&](std::span<const at::Tensor> here) { return loss(i, here); }, rows);
      });
      reduce();
    } catch (...) {
      for (auto& each : steps_) (void)each->take_gradients();
      step(0).set_gradients(before);
      throw;
    }
    at::Tensor all = step(0).loss();
    publish(before);
    for (auto& each : steps_) each->clear();
    return all;
  }

  at::Tensor forward(const Forward& forward, const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs(steps_.size());
    compute(inputs, [&](int i, std::span<const at::Tensor> rows) {
      at::NoGradGuard no_grad;
      const ComputeDevice& device = devices()[static_cast<std::size_t>(i)];
      std::vector<at::Tensor> here;
      std::int64_t count = 0;
      for (const at::Tensor& input : rows) {
        here.push_back(input.to(device.device, /*non_blocking=*/true));
        if (input.dim() > 0) count = input.size(0);
      }
      at::Tensor output = forward(i, here);
      check(output.defined() && output.dim() > 0 && output.size(0) == count,
            "the output for {} rows must have as many rows, found {}", count,
            output.defined() ? formatted("sizes [{}]", listed(output.sizes(), ", ")) : "nothing");
      outputs[static_cast<std::size_t>(i)] = output.to(devices().front().device);
    });
    std::erase_if(outputs, [](const at::Tensor& one) { return !one.defined(); });
    at::NoGradGuard no_grad;
    return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
  }

  [[nodiscard]] const std::vector<ComputeDevice>& devices() const { return team_.devices(); }

  [[nodiscard]] const std::vector<std::shared_ptr<torch::nn::Module>>& modules() const {
    return modules_;
  }

  void detach() override { hooks_.reset(); }

  void zero_grad(bool set_to_none) override {
    watch_.check();
    WholeModuleState::zero_grad(set_to_none);
  }

  [[nodiscard]] HandleMemory memory() const override {
    std::vector<Part> all;
    for (const Replica& replica : replicas_)
      for (const at::Tensor& tensor : replica.parameters)
        all.push_back({{}, tensor, {}, layout::whole_slice(tensor.sizes())});
    return parallel::memory_of(all);
  }

 private:
  [[nodiscard]] ReplicaStep& step(int i) { return *steps_[static_cast<std::size_t>(i)]; }

  // Checks the model, and copies its training flags to the replicas.
  void prepare() {
    watch_.check();
    for (std::size_t i = 1; i < replicas_.size(); ++i) {
      check_as_made(replicas_.front(), replicas_[i], devices().front().device, names_);
      follow_training_flags(*model_, *replicas_[i].module);
      for (std::size_t k = 0; k < replicas_[i].parameters.size(); ++k)
        replicas_[i].parameters[k].set_requires_grad(
            replicas_.front().parameters[k].requires_grad());
    }
  }

  void join_groups() {
    std::vector<Group> groups = local_groups(team_.size(), Duration::max());
    for (int i = 0; i < team_.size(); ++i)
      step(i).join(std::exchange(groups[static_cast<std::size_t>(i)], Group()));
  }

  // Runs task(i, rows) in the threads of the devices that have rows, after all devices have taken
  // the first one's values.
  void compute(const std::vector<at::Tensor>& inputs,
               const std::function<void(int, std::span<const at::Tensor>)>& task) {
    auto shares = scatter(inputs, team_.size());
    prepare();
    const bool alone = team_.size() == 1;
    const std::uint64_t seed = alone ? 0 : draw_seed();
    run([&](int i) {
      std::optional<dispatch::ThreadGenerator> random;
      if (!alone) {
        const std::uint64_t own = fingerprint_of(seed, i);
        random.emplace(own);
        const c10::Device device = devices()[static_cast<std::size_t>(i)].device;
        if (!device.is_cpu()) dispatch::seed_default_generator(device, own);
      }
      {
        std::optional<parallel::WaitTime::Scope> waiting;
        if (i == 0) waiting.emplace(*waits_);
        step(i).take_values();
      }
      const auto& rows = shares[static_cast<std::size_t>(i)];
      if (rows.empty()) return;
      const std::vector<std::int64_t> versions = step(i).versions();
      task(i, rows);
      step(i).check_not_written(versions);
    });
  }

  void reduce() {
    double total = 0;
    for (auto& each : steps_) total += each->weight();
    check(total > 0, "DataParallel: the losses of all devices have weight 0, so they have no mean");
    std::vector<std::size_t> used;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (std::ranges::any_of(steps_, [&](const auto& each) { return each->has_gradient(i); }))
        used.push_back(i);
    parallel::WaitTime::Scope waiting(*waits_);
    run([&](int i) { step(i).reduce(step(i).weight() * team_.size() / total, used); });
  }

  // Runs task(i) in all threads; throws DeviceFailed if one of them has thrown.
  void run(const std::function<void(int)>& task) {
    std::vector<std::exception_ptr> problems = team_.run([&](int i) {
      device_of_thread = i;
      task(i);
    });
    auto failed = std::ranges::find_if(
        problems, [](const auto& one) { return one != nullptr && !is_abort(one); });
    if (failed == problems.end())
      failed = std::ranges::find_if(problems, [](const auto& one) { return one != nullptr; });
    if (failed == problems.end()) return;
    const auto number = static_cast<int>(failed - problems.begin());
    for (auto& each : steps_) each->clear();
    join_groups();
    throw_failed(formatted("DataParallel: {}: {}",
                           describe(devices()[static_cast<std::size_t>(number)], number),
                           parallel::exception_text(*failed)),
                 *failed);
  }

  // Sets .grad to the sums plus the previous gradients in `before`.
  void publish(const std::vector<at::Tensor>& before) {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> sums = step(0).gradients();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!before[i].defined()) continue;
      if (sums[i].defined()) before[i].add_(sums[i]);
      sums[i] = before[i];
    }
    step(0).set_gradients(sums);
  }

  // Called when a graph of a device has reached a parameter of the model itself.
  void on_gradient(int parameter) const {
    if (device_of_thread <= 0) return;
    std::vector<std::string> trained;
    for (const NamedParameter& one : parameters_)
      if (one.tensor.requires_grad()) trained.push_back(one.name);
    throw InvalidArgument(formatted(
        "the replica computes with {} of the model itself: its clone() has kept a module or tensor "
        "that reset() should make anew",
        trained[static_cast<std::size_t>(parameter)]));
  }

  std::shared_ptr<torch::nn::Module> model_;
  DeviceTeam team_;
  std::vector<Replica> replicas_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<NamedParameter> parameters_;
  std::vector<std::string> names_;  // of parameters and buffers, in Replica's order
  modules::ModuleWatch watch_;
  std::vector<std::unique_ptr<ReplicaStep>> steps_;  // by device
  std::unique_ptr<parallel::GradientHooks> hooks_;
};

}  // namespace

}  // namespace lockstep::threads

namespace lockstep {
namespace {

threads::ReplicaState& replicas_behind(const std::shared_ptr<HandleState>& state) {
  return static_cast<threads::ReplicaState&>(*state);
}

}  // namespace

namespace threads {

void refuse_replica_type(int device) {
  throw InvalidArgument(formatted(
      "DataParallel: the replica for device {} has another class than the model", device));
}

}  // namespace threads

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> model,
                                   std::vector<ComputeDevice> devices,
                                   const DataParallelOptions& options)
    : Handle(sys::make_shared_of_process<threads::ReplicaState>(std::move(model),
                                                                std::move(devices), options)) {}

const std::vector<ComputeDevice>& DataParallelBase::devices() const {
  return replicas_behind(state()).devices();
}

const std::vector<std::shared_ptr<torch::nn::Module>>& DataParallelBase::replicas() const {
  return replicas_behind(state()).modules();
}

at::Tensor DataParallelBase::run_backward(const Loss& loss, const std::vector<at::Tensor>& inputs) {
  return replicas_behind(state()).backward(loss, inputs);
}

at::Tensor DataParallelBase::run_forward(const Forward& forward,
                                         const std::vector<at::Tensor>& inputs) {
  return replicas_behind(state()).forward(forward, inputs);
}

namespace {

// Returns a list such as "0-3, 8".
std::string core_list(std::vector<int> cores) {
  std::ranges::sort(cores);
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? formatted("{}", cores[i]) : formatted("{}-{}", cores[i], cores[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

std::vector<ComputeDevice> cpu_devices(int count) {
  check(count >= 1, "cpu_devices: expected at least 1 device, found {}", count);
  std::vector<int> cores = sys::allowed_cores();
  const int all = static_cast<int>(cores.size());
  const int threads = std::max(1, std::min(sys::usable_cores(), at::get_num_threads()) / count);
  std::vector<ComputeDevice> devices(static_cast<std::size_t>(count));
  if (count > all) return devices;
  for (int i = 0; i < count; ++i) {
    ComputeDevice& device = devices[static_cast<std::size_t>(i)];
    device.cores.assign(cores.begin() + i * all / count, cores.begin() + (i + 1) * all / count);
    device.threads = std::min(threads, static_cast<int>(device.cores.size()));
  }
  return devices;
}

std::vector<ComputeDevice> accelerator_devices(int count) {
  const int visible = accelerator_count();
  check(count >= 1 && count <= visible,
        "accelerator_devices: expected at least 1, and at most the {} that this process sees, "
        "found {}",
        counted(visible, "device"), count);
  const c10::DeviceType type = accelerator().value();
  std::vector<ComputeDevice> devices;
  for (int i = 0; i < count; ++i)
    devices.push_back({.device = c10::Device(type, static_cast<c10::DeviceIndex>(i))});
  return devices;
}

std::vector<ComputeDevice> default_devices(int count) {
  return count >= 1 && count <= accelerator_count() ? accelerator_devices(count)
                                                    : cpu_devices(count);
}

std::string describe(const ComputeDevice& device, int number) {
  std::string cores;
  if (!device.cores.empty())
    cores =
        formatted(", {} {}", device.cores.size() == 1 ? "core" : "cores", core_list(device.cores));
  return formatted("device {} ({}{})", number, device.device.str(), cores);
}

void check_devices(std::span<const ComputeDevice> devices) {
  check(!devices.empty(), "DataParallel: expected at least 1 device, found none");
  const std::vector<int> allowed = sys::allowed_cores();
  std::map<int, int> owners;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto& [device, cores, threads] = devices[i];
    const int number = static_cast<int>(i);
    check(threads >= 1, "DataParallel: {}: expected at least 1 thread, found {}",
          describe(devices[i], number), threads);
    if (!device.is_cpu()) {
      check(device.has_index(),
            "DataParallel: device {} is {} without a number: give one, such as {}:0", number,
            device.str(), device.str());
      for (std::size_t other = 0; other < i; ++other)
        check(devices[other].device != device,
              "DataParallel: {} is given twice, as devices {} and {}", device.str(), other, number);
    }
    for (int core : cores) {
      check(std::ranges::binary_search(allowed, core),
            "DataParallel: device {} asks for core {}, which this process may not use; it may use "
            "{}",
            number, core, core_list(allowed));
      auto [owner, is_free] = owners.emplace(core, number);
      check(is_free,
            "DataParallel: core {} is given twice, for devices {} and {}: give each device cores "
            "of its own, as cpu_devices() does",
            core, owner->second, number);
    }
  }
}

}  // namespace lockstep
