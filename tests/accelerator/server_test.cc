// Workers of a parameter server with parameters on the simulated accelerator. Servers compute on
// the CPU.
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/server/server.h>
#include <lockstep/parallel/server/worker.h>
#include <lockstep/store/memory_store.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int steps_of_workers = 3;

class ServedWorkers : public AcceleratorTest, public testing::WithParamInterface<int> {};

std::vector<at::Tensor> trained_by_one() {
  auto model = model_on(c10::kCPU);
  optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps_of_workers; ++step) {
    sgd.zero_grad();
    for (int worker = 0; worker < ranks; ++worker)
      (loss_of(model, step * ranks + worker) / ranks).backward();
    sgd.step();
  }
  return model->parameters();
}

TEST_P(ServedWorkers, TrainWithTheBitsOfOneProcess) {
  const auto expected = trained_by_one();
  const ps::Meeting meeting{.store = std::make_shared<MemoryStore>(),
                            .servers = GetParam(),
                            .workers = ranks,
                            .backend = "gloo",
                            .timeout = std::chrono::seconds(20),
                            .join_timeout = std::chrono::seconds(20)};
  const ps::ServerOptions options{.optimizer = [](const std::vector<Part>& parts) {
    return std::make_unique<optim::SGD>(ps::tensors_of(parts),
                                        torch::optim::SGDOptions(0.1).momentum(0.9));
  }};
  std::vector<std::jthread> servers;
  for (int number = 0; number < meeting.servers; ++number)
    servers.emplace_back([&, number] {
      try {
        const ps::ServerReport report = ps::Server(meeting, number, options).run();
        EXPECT_EQ(report.joined, ranks);
        EXPECT_TRUE(report.lost.empty());
      } catch (const std::exception& error) {
        ADD_FAILURE() << "server " << number << ": " << error.what();
      }
    });
  run_ranks(ranks, [&](const Group& group, c10::Device device) {
    auto model = model_on(device);
    if (group.rank() > 0) test::fill_parameters(*model, 90);  // gets those of worker 0
    ps::Worker worker(model, meeting, group.rank());
    for (int step = 0; step < steps_of_workers; ++step) {
      worker.zero_grad();
      loss_of(model, step * ranks + group.rank()).backward();
      worker.step();
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(model->parameters()[i].device(), device);
      EXPECT_TRUE(model->parameters()[i].detach().cpu().equal(expected[i])) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OnDevices, ServedWorkers, testing::Values(1, 2));

}  // namespace
