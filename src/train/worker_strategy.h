// WorkerStrategy: a worker's part in a run on parameter servers.
#pragma once

#include "parallel/whole_module_state.h"
#include "train/run_strategy.h"

#include <lockstep/parallel/server/worker.h>
#include <lockstep/store/store_server.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::train {

class WorkerStrategy : public RunStrategy {
 public:
  // `all`: workers and servers; `workers`: the first of these.
  WorkerStrategy(const Options& options, Task& task, Group all, Group workers);

  // Whether attach() has told the servers to begin.
  [[nodiscard]] bool is_attached() const { return is_attached_; }
  // The end: the servers go on without this worker. On rank 0 what they need of it until all have
  // left, else null.
  [[nodiscard]] std::unique_ptr<StoreServer> leave();

  // Collective over all: tells the servers that they may begin.
  void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) override;
  double backward(const StepRows& rows, optim::GradScaler& scaler) override;
  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override;
  void meet(bool shows_model) override;
  void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
            checkpoint::SaveOptions options, checkpoint::AsyncSaver* saver) override;
  void load(const std::filesystem::path& folder) override;
  Totals measure(const Batch& batch) override { return task_.measure(batch); }
  std::string sample(std::int64_t length) override { return task_.sample(length); }
  std::vector<std::pair<std::string, std::string>> results() override;

 private:
  // `both` on worker 0, which tells the servers to do the same, and on the other workers.
  void with_servers(const std::string& request, const std::function<void()>& both);

  const Options& options_;
  Task& task_;
  Group all_, workers_;
  bool is_attached_ = false;
  std::unique_ptr<StoreServer> store_server_;  // of rank 0; in it all meet
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<parallel::WholeModuleState> state_;
  Handle whole_;                                      // on the whole model, over the workers
  Handle rest_;                                       // what no server has, over all
  std::unique_ptr<torch::optim::Optimizer> nothing_;  // the optimizer of nothing
  std::optional<ps::Worker> worker_;
};

// `trained`: what an optimizer updates on this rank; `all`: these and the others that this rank
// saves.
[[nodiscard]] std::shared_ptr<parallel::WholeModuleState> parts_state(
    Group group, std::vector<NamedPart> trained, std::vector<NamedPart> all);

// Numbers that servers are told when workers are ready; collective over all, from rank 0.
[[nodiscard]] RunLength share_steps(Group& all, const RunLength& own);

// Collective over all: throws CommonFailure with what rank 0 says, unless that is empty.
void share_failure(Group& all, const std::string& failure);

// The request of a worker: "save FOLDER", "load FOLDER".
inline constexpr std::string_view save_request = "save ";
inline constexpr std::string_view load_request = "load ";

}  // namespace lockstep::train
