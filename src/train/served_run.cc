#include "base/check.h"
#include "base/format.h"
#include "module/checks.h"
#include "parallel/handle_state.h"
#include "parallel/server/meeting.h"
#include "parallel/state_dict.h"
#include "train/interrupt.h"
#include "train/strategies.h"

#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/optim/clipping.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/server/worker.h>
#include <lockstep/store/store_server.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

// Requests of a worker: "save FOLDER", "load FOLDER".
constexpr std::string_view save_request = "save ";
constexpr std::string_view load_request = "load ";

// `trained`: what an optimizer updates on this rank; `all`: these and the others that this rank
// saves.
std::shared_ptr<parallel::WholeModuleState> parts_state(Group group, std::vector<Part> trained,
                                                        std::vector<Part> all) {
  return std::make_shared<parallel::WholeModuleState>(
      std::move(group), std::move(trained), [all = std::move(all)] { return all; },
      HandleState::Holds::parts);
}

// Sends the run's length to the servers when the workers are ready. Collective over all ranks, from
// rank 0.
RunLength share_steps(Group& all, const RunLength& own) {
  const auto numbers =
      modules::numbers_of_all(all, {own.steps, own.steps_per_epoch}, {.tag = "steps"});
  return {numbers[0], numbers[1]};
}

// If `failure` on rank 0 is not empty, throws CollectiveFailure with it on all ranks. Collective
// over all ranks.
void share_failure(Group& all, const std::string& failure) {
  const std::string common = broadcast_text(all, failure);
  if (!common.empty()) throw CollectiveFailure(common, 0);
}

// Returns the module's tensors that the servers do not have.
std::vector<Part> other_parts(const std::vector<Part>& all, const std::vector<Part>& trained) {
  std::vector<Part> parts;
  for (const Part& part : all)
    if (std::ranges::find(trained, part.name, &Part::name) == trained.end()) parts.push_back(part);
  return parts;
}

// Returns the parameters that an optimizer updates, for a module that is whole on this rank.
std::vector<Part> trained_parts(const torch::nn::Module& module) {
  std::vector<Part> parts;
  for (const auto& [name, tensor, aliases] : unique_parameters(module))
    if (tensor.requires_grad())
      parts.push_back({name, tensor, aliases, layout::whole_slice(tensor.sizes())});
  return parts;
}

// The strategy of a worker.
class WorkerStrategy : public TrainedModel {
 public:
  // `all` are the workers and servers; `workers` are the first of these.
  WorkerStrategy(const Configuration& configuration, Group all, Group workers)
      : TrainedModel(configuration, std::move(workers)), all_(std::move(all)) {
    facts_.processes = all_.size();
    facts_.waits_each_step = consistency_of(options_) == ps::Consistency::synchronous;
  }

  // Returns true if attach() has told the servers to begin.
  [[nodiscard]] bool is_attached() const { return is_attached_; }
  // Ends this worker's part; the servers continue without it. On rank 0, returns the store server,
  // which the servers need until all ranks have left; otherwise null.
  [[nodiscard]] std::unique_ptr<StoreServer> leave() {
    worker_.reset();
    return std::move(store_server_);
  }

  // Tells the servers that they may begin. Collective over all ranks.
  void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) override {
    module_ = std::move(module);
    is_attached_ = true;
    share_failure(all_, "");
    (void)share_steps(all_, length);
    ps::GroupMeeting met = ps::meet_in_group(all_, all_.size() - world_.size());
    store_server_ = std::move(met.store_server);
    worker_.emplace(module_, met.place.meeting, met.place.number);
    const std::vector<Part> trained = trained_parts(*module_);
    const std::vector<Part> all = parallel::whole_state_parts(*module_);
    state_ = parts_state(world_, trained, all);
    whole_ = HandleState::handle_of(state_);
    handle_ = &whole_;
    rest_ = HandleState::handle_of(parts_state(all_, {}, other_parts(all, trained)));
    nothing_ = optimizer_of_nothing();
  }

  void update(double, const optim::GradientTransform& transform, optim::GradScaler&) override {
    // If each gradient makes its own update, it is clipped here; if updates use the mean of
    // gradients, the server clips the mean.
    if (transform.clip_norm && !facts_.waits_each_step) whole_.clip_grad_norm(*transform.clip_norm);
    parallel::WaitTime::Scope waiting(state_->waits());
    worker_->step();
  }

  void meet(bool) override {
    // All workers have pushed, and none pushes again until all have pulled.
    if (!facts_.waits_each_step) worker_->pull();
    at::NoGradGuard no_grad;
    for (const Part& part : state_->state_parts())
      if (part.kind == PartKind::buffer && part.tensor.numel() > 0) {
        at::Tensor values = part.tensor.contiguous();
        world_.broadcast(values, 0, {.tag = "buffers"}).wait();
        if (!values.is_same(part.tensor)) part.tensor.copy_(values);
      }
    world_.barrier().wait();
  }

  void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
            checkpoint::SaveOptions options, checkpoint::AsyncSaver*) override {
    with_servers(std::string(save_request) + out.string(),
                 [&] { checkpoint::save(out, rest_, *nothing_, state, options); });
  }

  void load(const std::filesystem::path& folder) override {
    std::map<std::string, at::Tensor> of_other_kinds;
    with_servers(std::string(load_request) + folder.string(), [&] {
      (void)checkpoint::load(folder, rest_, *nothing_,
                             {.verify = false, .per_rank = &of_other_kinds});
    });
    world_.barrier().wait();  // until the servers have answered worker 0
    worker_->pull();
  }

  std::vector<std::pair<std::string, std::string>> results() override {
    const ps::Traffic traffic = worker_->traffic();
    return {{"pushed_bytes", formatted("{}", traffic.pushed)},
            {"pulled_bytes", formatted("{}", traffic.pulled)}};
  }

 private:
  // Runs `both` on all workers. Worker 0 also sends `request`, so that the servers run it too.
  void with_servers(const std::string& request, const std::function<void()>& both) {
    if (!world_.is_root()) return both();
    std::exception_ptr failure;  // the servers get it, too, and still answer
    worker_->request(request, [&] {
      try {
        both();
      } catch (const CollectiveFailure&) {
        failure = std::current_exception();
      }
    });
    if (failure) std::rethrow_exception(failure);
  }

  Group all_;
  bool is_attached_ = false;
  std::unique_ptr<StoreServer> store_server_;  // on rank 0; used by all ranks
  std::shared_ptr<parallel::WholeModuleState> state_;
  Handle whole_;  // the whole model, over the workers
  Handle rest_;   // the parts that no server has, over all ranks
  std::unique_ptr<torch::optim::Optimizer> nothing_;  // the optimizer without parameters
  std::optional<ps::Worker> worker_;
};

// The workers end a run that gets a signal, and need the servers to do so.
class IgnoredSignals {
 public:
  IgnoredSignals() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
  }

 private:
  Interrupt restored_;  // brings back what was there
};

// The strategy of a server rank.
class ServedRun {
 public:
  ServedRun(const Options& options, Group all) : options_(options), all_(std::move(all)) {}

  // Serves until the last worker has left.
  void serve() {
    if (options_.threads > 0) at::set_num_threads(options_.threads);
    share_failure(all_, "");  // waits for the workers' data
    length_ = share_steps(all_, {});
    const IgnoredSignals ignored;
    schedule_ = schedule_of(options_, length_);
    const ps::GroupMeeting met = ps::meet_in_group(all_, server_count(options_));
    (void)ps::Server(met.place.meeting, met.place.number, server_options()).run();
  }

 private:
  ps::ServerOptions server_options() {
    ps::ServerOptions options{
        .optimizer =
            [this](const std::vector<Part>& parts) { return make_optimizer(options_, parts); },
        .consistency = consistency_of(options_),
        .staleness = options_.staleness};
    options.before_update = [this](torch::optim::Optimizer& optimizer, std::int64_t updates) {
      const bool is_mean = consistency_of(options_) == ps::Consistency::synchronous;
      const std::int64_t steps = is_mean ? updates : updates / workers();
      set_learning_rate(optimizer, schedule_(options_.lr, first_step_ + steps));
    };
    options.step = [this](torch::optim::Optimizer& optimizer) {
      optim::GradientTransform transform;
      if (options_.clip > 0 && consistency_of(options_) == ps::Consistency::synchronous)
        transform.clip_norm = options_.clip;
      (void)optim::step_transformed(optimizer, transform);
    };
    options.on_request = [this](std::string_view text, const std::vector<Part>& parts,
                                torch::optim::Optimizer* optimizer) {
      answer(text, parts, optimizer);
    };
    return options;
  }

  [[nodiscard]] std::int64_t workers() const { return all_.size() - server_count(options_); }

  // Workers get a common failure, too, and decide whether the run continues.
  void answer(std::string_view text, const std::vector<Part>& parts,
              torch::optim::Optimizer* optimizer) {
    try {
      save_or_load(text, parts, optimizer);
    } catch (const CollectiveFailure&) {
    }
  }

  void save_or_load(std::string_view text, const std::vector<Part>& parts,
                    torch::optim::Optimizer* optimizer) {
    std::vector<Part> saved = parts;
    for (Part& part : saved) part.tensor = part.tensor.detach();
    Handle handle = HandleState::handle_of(parts_state(all_, parts, std::move(saved)));
    std::unique_ptr<torch::optim::Optimizer> nothing;
    if (optimizer == nullptr) nothing = optimizer_of_nothing();
    torch::optim::Optimizer& own = optimizer == nullptr ? *nothing : *optimizer;
    if (text.starts_with(save_request)) {
      text.remove_prefix(save_request.size());
      checkpoint::save(std::string(text), handle, own, {});
      return;
    }
    check_input(text.starts_with(load_request),
                "parameter server: expected a request to save or "
                "load, found '{}'",
                text);
    text.remove_prefix(load_request.size());
    std::map<std::string, at::Tensor> of_other_kinds;
    first_step_ = checkpoint::load(std::string(text), handle, own,
                                   {.verify = false, .per_rank = &of_other_kinds})
                      .step;
  }

  const Options& options_;
  Group all_;
  RunLength length_;
  optim::Schedule schedule_;
  std::int64_t first_step_ = 0;  // of this run; updates count from it
};

// Returns the report of rank 0, or throws its failure. Collective; call after the servers have
// ended.
Report share_report(Group& all, const std::string& failure, Report report) {
  all.barrier().wait();
  share_failure(all, failure);
  constexpr double none = -1;
  at::Tensor numbers = at::tensor(
      {static_cast<double>(report.step), report.seconds, report.val_loss.value_or(none),
       report.val_loss ? 1.0 : 0.0, report.accuracy.value_or(none), report.accuracy ? 1.0 : 0.0,
       static_cast<double>(report.signal), report.stopped_early ? 1.0 : 0.0},
      at::kDouble);
  all.broadcast(numbers, 0, {.tag = "report"}).wait();
  const double* values = numbers.const_data_ptr<double>();
  report.step = static_cast<std::int64_t>(values[0]);
  report.seconds = values[1];
  report.val_loss = values[3] > 0 ? std::optional(values[2]) : std::nullopt;
  report.accuracy = values[5] > 0 ? std::optional(values[4]) : std::nullopt;
  report.signal = static_cast<int>(values[6]);
  report.stopped_early = values[7] > 0;
  report.last_line = broadcast_text(all, std::move(report.last_line));
  report.resume_command = broadcast_text(all, std::move(report.resume_command));
  return report;
}

}  // namespace

Report run_on_servers(const Configuration& configuration, Group world,
                      const std::function<Report(Group workers, TrainedModel& model)>& train_as) {
  const Options& options = configuration.options;
  std::vector<int> ranks(static_cast<std::size_t>(world.size() - server_count(options)));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::optional<Group> workers = world.subset(ranks);
  if (!workers) {
    ServedRun(options, world).serve();
    return share_report(world, "", {});
  }
  auto worker = std::make_unique<WorkerStrategy>(configuration, world, *workers);
  std::string failure;
  Report report;
  try {
    report = train_as(*workers, *worker);
  } catch (const CollectiveFailure& error) {
    failure = error.what();
  }
  const bool is_attached = worker->is_attached();
  std::unique_ptr<StoreServer> store;
  if (is_attached) store = worker->leave();
  // Destroyed in this order, because a group that is left by an exception counts as failed.
  worker.reset();
  workers.reset();
  if (!is_attached) share_failure(world, failure);  // throws
  return share_report(world, failure, std::move(report));
}

}  // namespace lockstep::train
