// Parameter servers and workers as processes of a test.
#pragma once

#include <lockstep/parallel/server/server.h>
#include <lockstep/parallel/server/worker.h>
#include <lockstep/store/file_store.h>

#include "parallel/support.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <lockstep/module/named_parameters.h>
#include <lockstep/module/state_dict.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <torch/nn/modules/embedding.h>

namespace lockstep::test {

// The servers of a test: created by the parent process, used in the child processes.
class Servers {
 public:
  Servers(int servers, int workers, std::string backend, ps::ServerOptions options)
      : servers_(servers),
        workers_(workers),
        backend_(std::move(backend)),
        options_(std::move(options)) {}

  [[nodiscard]] int servers() const { return servers_; }
  [[nodiscard]] int processes() const { return servers_ + workers_; }
  [[nodiscard]] ps::Meeting meeting() const {
    return {.store = std::make_shared<FileStore>(folder_.path()),
            .servers = servers_,
            .workers = workers_,
            .backend = backend_,
            .timeout = timeout,
            .join_timeout = join_timeout};
  }
  [[nodiscard]] ps::ServerReport serve(int number) const {
    return ps::Server(meeting(), number, options_).run();
  }
  // Runs `servers` server processes, and worker(number) in the other processes.
  void run(const std::function<void(int)>& worker) const {
    expect_ranks(processes(), [&](int process) {
      at::set_num_threads(1);
      if (process >= servers_) return worker(process - servers_);
      ps::ServerReport report = serve(process);
      EXPECT_EQ(report.joined, workers_);
      EXPECT_TRUE(report.lost.empty());
    });
  }

  Duration timeout = std::chrono::seconds(20);
  Duration join_timeout = std::chrono::seconds(20);

 private:
  int servers_, workers_;
  std::string backend_;
  ps::ServerOptions options_;
  TemporaryFolder folder_;
};

template <class Optimizer, class Options>
ps::MakeOptimizer made_with(Options options) {
  return [options](const std::vector<Part>& parts) {
    return std::make_unique<Optimizer>(ps::tensors_of(parts), options);
  };
}

inline ps::MakeOptimizer plain_sgd(double rate) {
  return made_with<optim::SGD>(torch::optim::SGDOptions(rate));
}

inline std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : named_tensors(module)) all.push_back(tensor.clone());
  return all;
}

inline void expect_same_state(const torch::nn::Module& module,
                              const std::vector<at::Tensor>& expected, const std::string& where) {
  auto found = state_of(module);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(same_bits(found[i], expected[i])) << where << ", tensor " << i;
}

}  // namespace lockstep::test
