#include <lockstep/parallel/data/diloco.h>

#include "base/check.h"
#include "module/checks.h"
#include "parallel/data/pseudo_gradient.h"
#include "parallel/handle_state.h"

#include <lockstep/parallel/handle.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <exception>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using data_parallel::flat_of;
using data_parallel::Fragment;
using data_parallel::PseudoGradientAverage;

void check_options(const DiLoCoOptions& options) {
  check(options.inner_steps >= 1, "DiLoCo: inner_steps must be at least 1, found {}",
        options.inner_steps);
  check(options.outer_lr > 0, "DiLoCo: outer_lr must be positive, found {}", options.outer_lr);
  check(options.outer_momentum >= 0 && options.outer_momentum < 1,
        "DiLoCo: outer_momentum must be at least 0 and below 1, found {}", options.outer_momentum);
  check(options.fragments >= 1 && options.fragments <= options.inner_steps,
        "DiLoCo: fragments must be 1 to inner_steps ({}), found {}", options.inner_steps,
        options.fragments);
  check(options.overlap_steps >= 0 && options.overlap_steps < options.inner_steps,
        "DiLoCo: overlap_steps must be at least 0 and below inner_steps ({}), found {}",
        options.inner_steps, options.overlap_steps);
  check(options.mixing >= 0 && options.mixing < 1,
        "DiLoCo: mixing must be at least 0 and below 1, found {}", options.mixing);
}

// Describes the options; checks them first, before any call.
std::vector<std::string> describe(const DiLoCoOptions& options) {
  check_options(options);
  return {formatted("option inner_steps = {}", options.inner_steps),
          formatted("option outer_lr = {}", options.outer_lr),
          formatted("option outer_momentum = {}", options.outer_momentum),
          formatted("option nesterov = {}", options.nesterov),
          formatted("option pseudo_gradients = {}", static_cast<int>(options.pseudo_gradients)),
          formatted("option fragments = {}", options.fragments),
          formatted("option overlap_steps = {}", options.overlap_steps),
          formatted("option mixing = {}", options.mixing)};
}

// Reads the entries made by state(), and counts them.
class StateReader {
 public:
  explicit StateReader(const std::map<std::string, at::Tensor>& state) : state_(state) {}

  at::Tensor integers(const std::string& name, std::int64_t count) {
    auto found = state_.find(name);
    check_input(found != state_.end() && found->second.numel() == count &&
                    found->second.scalar_type() == at::kLong,
                "DiLoCo: the state must have {} with {} integers", name, count);
    ++used_;
    return found->second;
  }

  // Returns the tensors of one kind for a fragment; undefined if the fragment has no such tensor.
  at::Tensor flat(const Fragment& fragment, const std::string& kind) {
    std::vector<at::Tensor> parts;
    for (const auto& [name, tensor, aliases] : fragment.parameters) {
      auto found = state_.find(kind + name);
      if (found == state_.end() && parts.empty()) return {};
      check_input(found != state_.end(), "DiLoCo: state has no {}{}", kind, name);
      check_input(found->second.sizes() == tensor.sizes(),
                  "DiLoCo: {}{} of the state: expected shape [{}], found [{}]", kind, name,
                  listed(tensor.sizes(), ", "), listed(found->second.sizes(), ", "));
      parts.push_back(found->second.detach().to(tensor.options()).reshape({-1}));
      ++used_;
    }
    return at::cat(parts);
  }
  at::Tensor flat_that_is_there(const Fragment& fragment, const std::string& kind) {
    at::Tensor values = flat(fragment, kind);
    check_input(values.defined(), "DiLoCo: state has no {}{}", kind,
                fragment.parameters.front().name);
    return values;
  }

  void check_all_used() const {
    check_input(used_ == state_.size(), "DiLoCo: the state must have no unknown tensors, found {}",
                state_.size() - used_);
  }

 private:
  const std::map<std::string, at::Tensor>& state_;
  std::size_t used_ = 0;
};

class DiLoCoState final : public data_parallel::LocalModelState {
 public:
  DiLoCoState(const ModuleRef& module, const Ranks& ranks, const DiLoCoOptions& options)
      : LocalModelState(module, ranks, "DiLoCo", describe(options), options.timeout),
        options_(options),
        groups_(data_parallel::averaging_groups(group_, options.pseudo_gradients)),
        watch_(*module_, {}, "DiLoCo was made", /*with_buffers=*/false) {
    for (const Group& own : {groups_.all, groups_.inside, groups_.across}) aborts(own);
    auto runs = data_parallel::divide(parameters_, options.fragments);
    for (std::size_t p = 0; p < runs.size(); ++p) {
      Fragment fragment;
      fragment.outer = flat_of(runs[p]);
      fragment.parameters = std::move(runs[p]);
      fragment.first_step =
          p == 0 ? options.inner_steps
                 : static_cast<std::int64_t>(p) * options.inner_steps / options.fragments;
      fragments_.push_back(std::move(fragment));
    }
  }

  int step() {
    at::NoGradGuard no_grad;
    check_usable();
    ++steps_;
    int arrived = 0;
    for (std::size_t number = 0; number < fragments_.size(); ++number)
      if (is_due(fragments_[number])) post(number);
    for (Fragment& fragment : fragments_) {
      if (!fragment.posted || steps_ != half_way(fragment)) continue;
      parallel::WaitTime::Scope waiting(*waits_);
      communicate([&] { fragment.average.advance(); });
    }
    for (std::size_t number = 0; number < fragments_.size(); ++number) {
      Fragment& fragment = fragments_[number];
      if (!fragment.posted || steps_ < *fragment.posted + options_.overlap_steps) continue;
      arrive(fragment, number);
      ++arrived;
    }
    return arrived;
  }

  int synchronize() {
    at::NoGradGuard no_grad;
    check_usable();
    int arrived = 0;
    auto arrive_all = [&] {
      for (std::size_t number = 0; number < fragments_.size(); ++number) {
        if (!fragments_[number].posted) continue;
        arrive(fragments_[number], number);
        ++arrived;
      }
    };
    arrive_all();  // a fragment may be in flight only once
    for (std::size_t number = 0; number < fragments_.size(); ++number)
      if (!is_due(fragments_[number])) post(number);
    arrive_all();
    return arrived;
  }

  [[nodiscard]] std::map<std::string, at::Tensor> state() {
    at::NoGradGuard no_grad;
    check_usable();
    std::map<std::string, at::Tensor> state;
    at::Tensor posted = at::empty({options_.fragments}, at::kLong);
    for (std::size_t number = 0; number < fragments_.size(); ++number) {
      Fragment& fragment = fragments_[number];
      auto add = [&](const std::string& kind, const at::Tensor& flat) {
        for_parts(fragment, flat, [&](const NamedParameter& own, const at::Tensor& part) {
          state.emplace(kind + own.name, part.clone());
        });
      };
      add("outer.", fragment.outer);
      if (fragment.momentum.defined()) add("momentum.", fragment.momentum);
      if (fragment.posted) add("arrived.", wait_for(fragment));
      posted[static_cast<std::int64_t>(number)] = fragment.posted.value_or(0);
    }
    state.emplace("posted", posted);
    state.emplace("step", at::empty({1}, at::kLong).fill_(steps_));
    return state;
  }

  void load_state(const std::map<std::string, at::Tensor>& state) {
    at::NoGradGuard no_grad;
    check_usable();
    StateReader reader(state);
    const auto step = reader.integers("step", 1).item<std::int64_t>();
    check_input(step >= 0, "DiLoCo: step of the state: expected at least 0, found {}", step);
    at::Tensor posted = reader.integers("posted", options_.fragments);
    std::vector<Fragment> loaded = fragments_;
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      Fragment& fragment = loaded[i];
      const auto since = posted.view({-1})[static_cast<std::int64_t>(i)].item<std::int64_t>();
      check_input(since == 0 || (since > 0 && since <= step && step - since < options_.inner_steps),
                  "DiLoCo: posted of the state: expected 0 or one of the last {} steps up to {}, "
                  "found {}",
                  options_.inner_steps, step, since);
      fragment.outer = reader.flat_that_is_there(fragment, "outer.");
      fragment.momentum = reader.flat(fragment, "momentum.");
      // A fragment that synchronize() has posted before the first step is at step 0.
      fragment.arrived = since > 0 ? reader.flat_that_is_there(fragment, "arrived.")
                         : step < options_.inner_steps ? reader.flat(fragment, "arrived.")
                                                       : at::Tensor();
      fragment.posted.reset();
      if (fragment.arrived.defined()) fragment.posted = since;
      fragment.average = {};
    }
    reader.check_all_used();
    wait_for_all();
    fragments_ = std::move(loaded);
    steps_ = step;
  }

  [[nodiscard]] std::vector<Part> state_parts() override {
    watch_.check();
    std::map<std::string, at::Tensor> outer;
    for (const Fragment& fragment : fragments_)
      for_parts(fragment, fragment.outer, [&](const NamedParameter& own, const at::Tensor& part) {
        outer.emplace(own.name, part);
      });
    std::vector<Part> parts = LocalModelState::state_parts();
    for (Part& part : parts) {
      std::vector<std::string> names = part.aliases;
      names.push_back(part.name);
      for (const std::string& name : names)
        if (auto found = outer.find(name); found != outer.end()) part.tensor = found->second;
    }
    return parts;
  }

  // Drops averages in flight and the momentum: they belong to the previous outer parameters.
  void begin_load() override {
    check_usable();
    wait_for_all();
    for (Fragment& fragment : fragments_) {
      fragment.posted.reset();
      fragment.average = {};
      fragment.arrived = fragment.momentum = at::Tensor();
    }
  }

  // The outer parameters have new values.
  void end_load(bool) override {
    for (const Fragment& fragment : fragments_)
      for_parts(fragment, fragment.outer, [](const NamedParameter& own, const at::Tensor& part) {
        own.tensor.detach().copy_(part);
      });
  }

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  [[nodiscard]] std::int64_t bytes_sent() const { return bytes_sent_; }

 private:
  [[nodiscard]] bool is_due(const Fragment& fragment) const {
    return steps_ >= fragment.first_step &&
           (steps_ - fragment.first_step) % options_.inner_steps == 0;
  }

  // The step at which the second exchange is posted; both exchanges run while the ranks train.
  [[nodiscard]] std::int64_t half_way(const Fragment& fragment) const {
    return fragment.posted.value() + (options_.overlap_steps + 1) / 2;
  }

  void check_usable() const {
    watch_.check();
    check(
        failure_.empty(),
        "DiLoCo: an average of pseudo-gradients has failed before ({}): make a new DiLoCo and load "
        "a saved state",
        failure_);
  }

  // If it throws, this rank's fragments may differ from those of other ranks.
  void communicate(const auto& calls) {
    const std::int64_t before = groups_.bytes_sent();
    try {
      calls();
      bytes_sent_ += groups_.bytes_sent() - before;
    } catch (...) {
      failure_ = parallel::exception_text(std::current_exception());
      throw;
    }
  }

  void post(std::size_t number) {
    Fragment& fragment = fragments_[number];
    fragment.posted = steps_;
    communicate([&] {
      fragment.average = PseudoGradientAverage(
          groups_, fragment.outer - flat_of(fragment.parameters), options_.pseudo_gradients,
          formatted("DiLoCo fragment {}", number), options_.timeout);
    });
  }

  void arrive(Fragment& fragment, std::size_t number) {
    at::Tensor average = wait_for(fragment);
    fragment.arrived = at::Tensor();
    fragment.average = {};
    fragment.posted.reset();
    if (!at::isfinite(average).all().item<bool>())
      throw ReductionFailed(
          formatted("DiLoCo: the pseudo-gradient of fragment {} ({} ... {}) has inf or NaN on some "
                    "rank; its parameters stay as they were",
                    number, fragment.parameters.front().name, fragment.parameters.back().name));
    update(fragment, average);
    for_parts(fragment, fragment.outer, [this](const NamedParameter& own, const at::Tensor& outer) {
      at::Tensor tensor = own.tensor.detach();
      if (options_.mixing == 0) {
        tensor.copy_(outer);
      } else {
        tensor.mul_(options_.mixing).add_(outer, 1 - options_.mixing);
      }
    });
  }

  [[nodiscard]] const at::Tensor& wait_for(Fragment& fragment) {
    if (!fragment.arrived.defined()) {
      parallel::WaitTime::Scope waiting(*waits_);
      communicate([&] { fragment.arrived = fragment.average.average(); });
    }
    return fragment.arrived;
  }

  void wait_for_all() {
    for (Fragment& fragment : fragments_)
      if (fragment.posted) (void)wait_for(fragment);
  }

  // As torch::optim::SGD.
  void update(Fragment& fragment, const at::Tensor& average) const {
    at::Tensor direction = average;
    if (options_.outer_momentum > 0) {
      if (fragment.momentum.defined()) {
        fragment.momentum.mul_(options_.outer_momentum).add_(average);
      } else {
        fragment.momentum = average.clone();
      }
      direction = options_.nesterov ? average.add(fragment.momentum, options_.outer_momentum)
                                    : fragment.momentum;
    }
    fragment.outer.add_(direction, -options_.outer_lr);
  }

  DiLoCoOptions options_;
  data_parallel::AveragingGroups groups_;
  const modules::ModuleWatch watch_;
  std::vector<Fragment> fragments_;
  std::int64_t steps_ = 0;
  std::int64_t bytes_sent_ = 0;
  std::string failure_;  // what communicate() has thrown
};

DiLoCoState& diloco(const std::shared_ptr<HandleState>& state) {
  return static_cast<DiLoCoState&>(*state);
}

}  // namespace

DiLoCo::DiLoCo(const ModuleRef& module, const Ranks& ranks, const Options& options)
    : Handle(std::make_shared<DiLoCoState>(module, ranks, options)) {}

int DiLoCo::step() { return diloco(Handle::state()).step(); }
int DiLoCo::synchronize() { return diloco(Handle::state()).synchronize(); }
std::int64_t DiLoCo::steps() const { return diloco(Handle::state()).steps(); }
std::int64_t DiLoCo::bytes_sent() const { return diloco(Handle::state()).bytes_sent(); }
std::map<std::string, at::Tensor> DiLoCo::state() { return diloco(Handle::state()).state(); }
void DiLoCo::load_state(const std::map<std::string, at::Tensor>& state) {
  diloco(Handle::state()).load_state(state);
}

}  // namespace lockstep
