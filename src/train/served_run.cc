#include "train/served_run.h"

#include "base/check.h"
#include "base/format.h"
#include "parallel/server/group_meeting.h"
#include "train/interrupt.h"
#include "train/optimizer.h"
#include "train/option_table.h"
#include "train/worker_strategy.h"

#include <lockstep/comm/together.h>
#include <lockstep/optim/gradient_transform.h>

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>

#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

// What one server's rank does.
class ServedRun {
 public:
  ServedRun(const Options& options, Group all) : options_(options), all_(std::move(all)) {}

  // Until the last worker has left.
  void serve() {
    if (options_.threads > 0) at::set_num_threads(options_.threads);
    share_failure(all_, "");  // until the workers have read their data
    length_ = share_steps(all_, {});
    interrupt_.emplace();
    schedule_ = schedule_of(options_, length_);
    const ps::GroupMeeting met = ps::meet_in_group(all_, server_count(options_));
    (void)ps::Server(met.place.meeting, met.place.number, server_options()).run();
  }

 private:
  ps::ServerOptions server_options() {
    ps::ServerOptions options{
        .optimizer =
            [this](const std::vector<NamedPart>& parts) { return make_optimizer(options_, parts); },
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
    options.on_request = [this](std::string_view text, const std::vector<NamedPart>& parts,
                                torch::optim::Optimizer* optimizer) {
      answer(text, parts, optimizer);
    };
    return options;
  }

  [[nodiscard]] std::int64_t workers() const { return all_.size() - server_count(options_); }

  // A common failure reaches the workers, too, and they decide what becomes of the run.
  void answer(std::string_view text, const std::vector<NamedPart>& parts,
              torch::optim::Optimizer* optimizer) {
    try {
      save_or_load(text, parts, optimizer);
    } catch (const CommonFailure&) {
    }
  }

  void save_or_load(std::string_view text, const std::vector<NamedPart>& parts,
                    torch::optim::Optimizer* optimizer) {
    std::vector<NamedPart> saved = parts;
    for (NamedPart& part : saved) part.tensor = part.tensor.detach();
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
    first_step_ =
        checkpoint::load(std::string(text), handle, own, {.verify = false, .own = &of_other_kinds})
            .step;
  }

  const Options& options_;
  Group all_;
  // Workers end the run when a signal comes, and need their servers for it.
  std::optional<Interrupt> interrupt_;
  RunLength length_;
  optim::Schedule schedule_;
  std::int64_t first_step_ = 0;  // of this run: updates count from it
};

// Collective, when the servers have ended: the failure or the report of rank 0.
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

Report run_on_servers(Task& task, const Options& options, Group world,
                      const std::function<Report(Group workers, RunStrategy& strategy)>& train_as) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size() - server_count(options)));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::optional<Group> workers = world.subset(ranks);
  if (!workers) {
    ServedRun(options, world).serve();
    return share_report(world, "", {});
  }
  auto strategy = std::make_unique<WorkerStrategy>(options, task, world, *workers);
  std::string failure;
  Report report;
  try {
    report = train_as(*workers, *strategy);
  } catch (const CommonFailure& error) {
    failure = error.what();
  }
  const bool is_attached = strategy->is_attached();
  std::unique_ptr<StoreServer> store;
  if (is_attached) store = strategy->leave();
  // In order: a group that an exception leaves behind counts as failed.
  strategy.reset();
  workers.reset();
  if (!is_attached) share_failure(world, failure);  // throws
  return share_report(world, failure, std::move(report));
}

}  // namespace lockstep::train
