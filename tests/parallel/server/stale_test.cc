// Stale-synchronous and asynchronous training: which workers wait, and that training converges.
#include "parallel/server/support.h"

#include <thread>

namespace lockstep {
namespace {

using namespace test;
using std::chrono::milliseconds;

struct Line {
  torch::nn::Linear model{3, 1};
  explicit Line(std::int64_t seed) { fill_parameters(*model, seed); }
  at::Tensor loss(int step) {
    at::Tensor x = values({8, 3}, step);
    return (model->forward(x) - x.sum(1, true)).square().mean();
  }
};

// With one slow worker, the other is never ahead by more than the bound.
TEST(StaleServers, AWorkerIsAtMostTheBoundAhead) {
  for (int bound : {0, 2}) {
    Servers place(2, 2, "shm",
                  {.optimizer = plain_sgd(0.01),
                   .consistency = ps::Consistency::stale_synchronous,
                   .staleness = bound});
    place.run([&](int number) {
      Line line(1);
      ps::Worker worker(line.model, place.meeting(), number);
      auto store = place.meeting().store;
      for (int step = 0; step < 8; ++step) {
        if (number == 1) {
          std::this_thread::sleep_for(milliseconds(30));
          store->set("slow", std::to_string(step + 1));  // the number of pushes after this step
        }
        worker.zero_grad();
        line.loss(step).backward();
        worker.step();
        if (number == 0) {
          int slow = std::stoi(store->try_get("slow").value_or("0"));
          EXPECT_LE(static_cast<int>(worker.steps()) - slow, bound);
        }
      }
    });
  }
}

// The fast worker never waits: it makes all its steps before the first step of the slow one.
TEST(StaleServers, AsynchronousWorkersWaitForNobody) {
  Servers place(1, 2, "shm",
                {.optimizer = plain_sgd(0.01), .consistency = ps::Consistency::asynchronous});
  place.run([&](int number) {
    Line line(1);
    ps::Worker worker(line.model, place.meeting(), number);
    auto store = place.meeting().store;
    if (number == 1) (void)store->get("done", Deadline::after(std::chrono::seconds(15)));
    for (int step = 0; step < 20; ++step) {
      worker.zero_grad();
      line.loss(step).backward();
      worker.step();
    }
    if (number == 0) store->set("done", "1");
  });
}

// Each gradient is a separate update; a single worker is equivalent to one process.
TEST(StaleServers, OneWorkerIsOneProcess) {
  for (auto consistency : {ps::Consistency::asynchronous, ps::Consistency::stale_synchronous}) {
    Servers place(2, 1, "shm",
                  {.optimizer = made_with<optim::AdamW>(torch::optim::AdamWOptions(0.1)),
                   .consistency = consistency});
    place.run([&](int number) {
      Line alone(1), line(1);
      optim::AdamW adamw(alone.model->parameters(), torch::optim::AdamWOptions(0.1));
      ps::Worker worker(line.model, place.meeting(), number);
      for (int step = 0; step < 10; ++step) {
        alone.model->zero_grad();
        alone.loss(step).backward();
        adamw.step();
        worker.zero_grad();
        line.loss(step).backward();
        worker.step();
        expect_same_state(*line.model, state_of(*alone.model), "step " + std::to_string(step));
      }
    });
  }
}

TEST(StaleServers, ManyWorkersTrainTogether) {
  for (auto consistency : {ps::Consistency::asynchronous, ps::Consistency::stale_synchronous}) {
    Servers place(2, 3, "shm",
                  {.optimizer = plain_sgd(0.05),
                   .consistency = consistency,
                   .staleness = consistency == ps::Consistency::stale_synchronous ? 4 : 0});
    place.run([&](int number) {
      Line line(1);
      const double before = line.loss(1000).item<double>();
      ps::Worker worker(line.model, place.meeting(), number);
      for (int step = 0; step < 60; ++step) {
        worker.zero_grad();
        line.loss(3 * step + number).backward();
        worker.step();
      }
      EXPECT_LT(line.loss(1000).item<double>(), before / 2);  // the other workers may be far behind
    });
  }
}

TEST(StaleServers, SchedulesSeeEachUpdate) {
  ps::ServerOptions options{.optimizer = plain_sgd(0)};
  options.before_update = [](torch::optim::Optimizer& optimizer, std::int64_t updates) {
    auto& sgd = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
    sgd.lr(updates == 2 ? 1.0 : 0.0);  // only the third update has an effect
  };
  Servers place(1, 2, "shm", options);
  place.run([&](int number) {
    Line line(1);
    ps::Worker worker(line.model, place.meeting(), number);
    auto first = state_of(*line.model);
    for (int step = 0; step < 4; ++step) {
      worker.zero_grad();
      line.loss(step).backward();
      worker.step();
      EXPECT_EQ(same_bits(state_of(*line.model)[0], first[0]), step < 2) << step;
    }
  });
}

}  // namespace
}  // namespace lockstep
