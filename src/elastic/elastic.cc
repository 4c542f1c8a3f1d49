#include <lockstep/elastic/elastic.h>

#include "base/check.h"
#include "base/escaped.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/rank_tensors.h"
#include "elastic/commits.h"
#include "elastic/goodput.h"
#include "elastic/round_fence.h"
#include "elastic/round_loop.h"
#include "module/checks.h"
#include "sys/files.h"

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <optional>
#include <vector>

namespace lockstep {

namespace fs = std::filesystem;

namespace {

constexpr const char* loader_text = "elastic.loader";

// Returns the newest checkpoint in `out` that rank 0 sees, or an empty path.
fs::path newest_checkpoint(Group& group, const fs::path& out) {
  return modules::text_of_root(group, [&]() -> std::string {
    if (out.empty()) return {};
    const auto newest = checkpoint::latest_checkpoint(out);
    return newest ? newest->string() : "";
  });
}

void check_tensors(const checkpoint::PartsReader& file, const std::string& prefix,
                   const checkpoint::NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const checkpoint::TensorEntry* entry = file.find(prefix + name);
    check_input(entry != nullptr, "expected a tensor named {}, found none", escaped(prefix + name));
    check_input(
        tensor.sizes() == at::IntArrayRef(entry->shape) && tensor.scalar_type() == entry->dtype,
        "{}: expected {} [{}], found {} [{}]", escaped(name), c10::toString(tensor.scalar_type()),
        listed(tensor.sizes(), ", "), c10::toString(entry->dtype), listed(entry->shape, ", "));
  }
  check_input(tensors.size() == file.entries().size(),
              "expected as many tensors as are registered, {}, found {}", tensors.size(),
              file.entries().size());
}

// Reads the values of the program's own tensors that were committed or saved with the state in
// `folder`. Collective. The folder may come from any number of ranks: a checkpoint stores these
// tensors as rank 0's own. Throws CollectiveFailure if the folder has other tensors.
void read_tensors(Group& group, const fs::path& folder, const checkpoint::NamedTensors& tensors) {
  if (tensors.empty()) return;
  const bool is_commit = checkpoint::step_of(folder) < 0;
  const std::string prefix = is_commit ? std::string() : checkpoint::prefix_of(0);
  checkpoint::PartsReader file(group, folder / (is_commit ? program_file : checkpoint::own_file));
  run_on_all_or_fail(group, [&] { file.in_file([&] { check_tensors(file, prefix, tensors); }); });
  std::vector<Part> parts;
  for (const auto& [name, tensor] : tensors)
    parts.push_back(
        {.name = prefix + name, .tensor = tensor, .slice = layout::whole_slice(tensor.sizes())});
  file.read(parts);
}

}  // namespace

struct ElasticState::State {
  explicit State(ElasticOptions of) : options(std::move(of)) {}

  [[nodiscard]] Round& in_round() const {
    check(round != nullptr, "ElasticState must be used inside the function that elastic() calls");
    return *round;
  }
  [[nodiscard]] const Handle& attached() const {
    check(handle != nullptr, "ElasticState::commit: call attach() first in this round");
    return *handle;
  }

  // Returns the folder of the state with which the round begins, or an empty path.
  fs::path newest() {
    Group& group = in_round().group();
    const fs::path memory = in_round().commits().newest();
    const fs::path saved = newest_checkpoint(group, options.out);
    if (memory.empty() || saved.empty()) return memory.empty() ? saved : memory;
    const auto step_in = [&](const fs::path& folder) {
      return checkpoint::read_training_state(group, folder).step;
    };
    return step_in(memory) >= step_in(saved) ? memory : saved;
  }

  void take_up(const fs::path& folder) {
    std::map<std::string, at::Tensor> of_rank;  // on other ranks too, read_tensors() reads these
    values = checkpoint::load(
        folder, *handle, *optimizer,
        {.scheduler = parts.scheduler, .scaler = parts.scaler, .per_rank = &of_rank});
    read_tensors(in_round().group(), folder, parts.tensors);
  }

  void save() {
    Group& group = in_round().group();
    const fs::path folder = options.out / checkpoint::checkpoint_name(values.step);
    // The checkpoint may already exist if the run was set back to an earlier step.
    if (newest_checkpoint(group, options.out) == folder) return;
    take_folder();
    checkpoint::save(options.out, *handle, *optimizer, values, saving());
  }

  // Takes over the folder from rank 0 of an earlier round, which may still run on a disconnected
  // host.
  void take_folder() {
    if (fence || !in_round().has_agent()) return;
    fence.emplace(options.out, in_round().of_run());
    modules::run_on_root_or_fail(in_round().group(), [&] {
      sys::make_directories(options.out);
      fence->take();
    });
  }

  [[nodiscard]] checkpoint::SaveOptions saving() {
    checkpoint::SaveOptions how{
        .scheduler = parts.scheduler, .scaler = parts.scaler, .keep = options.keep};
    if (in_round().group().is_root()) how.per_rank = parts.tensors;
    if (fence) how.before_naming = [this] { fence->check(); };
    return how;
  }

  const ElasticOptions options;
  Round* round = nullptr;  // valid while the function runs
  Handle* handle = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;
  ElasticParts parts;
  std::function<std::string()> loader;
  std::optional<RoundFence> fence;  // fence of the round, after its first save
  checkpoint::TrainingState values;
  Goodput goodput;
};

ElasticState::ElasticState(ElasticOptions options)
    : state_(std::make_unique<State>(std::move(options))) {
  const ElasticOptions& given = state_->options;
  check(given.save_every >= 0 && given.keep >= 0,
        "ElasticOptions: expected save_every and keep of at least 0, found {} and {}",
        given.save_every, given.keep);
  check(given.ranks_of_a_model > 0,
        "ElasticOptions: expected ranks_of_a_model of at least 1, found {}",
        given.ranks_of_a_model);
  check(given.save_every == 0 || !given.out.empty(),
        "ElasticOptions: save_every {} needs `out`, the folder of checkpoints", given.save_every);
}

ElasticState::~ElasticState() = default;

Group& ElasticState::group() { return state_->in_round().group(); }

std::int64_t ElasticState::round() const { return state_->in_round().number(); }

void ElasticState::attach(Handle& handle, torch::optim::Optimizer& optimizer, ElasticParts parts) {
  State& state = *state_;
  Group& group = state.in_round().group();
  check(state.handle == nullptr, "ElasticState::attach: called a second time in this round");
  check(handle.group().size() == group.size() && handle.group().rank() == group.rank(),
        "ElasticState::attach: the handle must use the group of this round");
  state.handle = &handle;
  state.in_round().abort_on_end(handle);
  state.optimizer = &optimizer;
  state.parts = std::move(parts);
  if (const fs::path folder = state.newest(); !folder.empty()) state.take_up(folder);
  state.goodput.begin_round(state.values.numbers);
  state.in_round().note_restored();
}

std::string ElasticState::loader_place() const {
  (void)state_->attached();
  const auto found = state_->values.progress.find(loader_text);
  return found == state_->values.progress.end() ? "" : found->second;
}

void ElasticState::set_loader(std::function<std::string()> place) {
  state_->loader = std::move(place);
}

std::int64_t ElasticState::step() const { return state_->values.step; }
std::map<std::string, double>& ElasticState::numbers() { return state_->values.numbers; }
std::map<std::string, std::string>& ElasticState::texts() { return state_->values.progress; }
double ElasticState::goodput() const { return state_->goodput.share(); }

void ElasticState::commit() {
  State& state = *state_;
  (void)state.attached();
  ++state.values.step;
  if (state.loader) state.values.progress[loader_text] = state.loader();
  state.goodput.count_step(state.values.numbers);
  const std::int64_t every = state.options.save_every;
  if (every > 0 && state.values.step % every == 0) state.save();
  state.in_round().commit({.handle = *state.handle,
                           .optimizer = *state.optimizer,
                           .state = state.values,
                           .options = state.saving(),
                           .own = state.parts.tensors},
                          [&] {
                            if (every > 0) state.save();
                          });
}

bool elastic(ElasticState& state, const std::function<void(ElasticState&)>& train) {
  ElasticState::State& inner = *state.state_;
  const int of_a_model = inner.options.ranks_of_a_model;
  return run_rendezvous_rounds(
      {.init = inner.options.init,
       .rejoin_timeout = inner.options.rejoin_timeout,
       .hot_spares = inner.options.hot_spares,
       .ranks_wanted = [&](int there) { return there / of_a_model * of_a_model; }},
      [&](Round& round) {
        inner.round = &round;
        inner.values = {};
        ScopeExit forget([&] {
          inner.round = nullptr;
          inner.handle = nullptr;
          inner.optimizer = nullptr;
          inner.parts = {};
          inner.loader = nullptr;
          inner.fence.reset();
        });
        train(state);
      });
}

}  // namespace lockstep
