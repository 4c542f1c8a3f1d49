// Lost processes, survivors, joining workers, and refused input.
#include "parallel/server/support.h"

#include <csignal>
#include <thread>

namespace lockstep {
namespace {

using namespace test;
using std::chrono::milliseconds;
using std::chrono::seconds;

at::Tensor loss_of_line(torch::nn::Linear& model, int step) {
  at::Tensor x = values({8, 3}, step);
  return (model->forward(x) - x.sum(1, true)).square().mean();
}

torch::nn::Linear line() {
  torch::nn::Linear model(3, 1);
  fill_parameters(*model, 1);
  return model;
}

void make_step(ps::Worker& worker, torch::nn::Linear& model, int number) {
  worker.zero_grad();
  loss_of_line(model, number).backward();
  worker.step();
}

void expect_exits(std::vector<RankResult> results, int killed) {
  for (int rank = 0; rank < static_cast<int>(results.size()); ++rank) {
    if (rank == killed) {
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].signal, SIGKILL) << rank;
    } else {
      EXPECT_TRUE(results[static_cast<std::size_t>(rank)].ok())
          << "process " << rank << ": " << results[static_cast<std::size_t>(rank)];
    }
  }
}

struct Place {
  const char* backend;
  ps::Consistency consistency;
};

class LostWorker : public testing::TestWithParam<Place> {};

TEST_P(LostWorker, TheRestGoesOn) {
  if (std::string(GetParam().backend) == "gloo" && !has(BackendKind::gloo)) GTEST_SKIP();
  Servers place(2, 3, GetParam().backend,
                {.optimizer = plain_sgd(0.05), .consistency = GetParam().consistency});
  expect_exits(run_ranks(place.processes(),
                         [&](int process) {
                           at::set_num_threads(1);
                           if (process < 2) {
                             ps::ServerReport report = place.serve(process);
                             EXPECT_EQ(report.lost, std::vector<int>({1}));
                             EXPECT_EQ(report.joined, 3);
                             return;
                           }
                           const int number = process - 2;
                           auto model = line();
                           const double before = loss_of_line(model, 1000).item<double>();
                           ps::Worker worker(model, place.meeting(), number);
                           for (int step = 0; step < 40; ++step) {
                             if (number == 1 && step == 7) std::raise(SIGKILL);
                             make_step(worker, model, 3 * step + number);
                           }
                           EXPECT_LT(loss_of_line(model, 1000).item<double>(), before);
                           EXPECT_EQ(worker.steps(), 40);
                         }),
               /*killed=*/3);
}

INSTANTIATE_TEST_SUITE_P(Places, LostWorker,
                         testing::Values(Place{"shm", ps::Consistency::synchronous},
                                         Place{"shm", ps::Consistency::stale_synchronous},
                                         Place{"shm", ps::Consistency::asynchronous},
                                         Place{"gloo", ps::Consistency::synchronous}),
                         [](const auto& info) {
                           return std::string(info.param.backend) +
                                  std::to_string(static_cast<int>(info.param.consistency));
                         });

TEST(LostServer, IsNamedByEveryWorker) {
  for (const char* backend : {"shm", "gloo"}) {
    if (std::string(backend) == "gloo" && !has(BackendKind::gloo)) continue;
    Servers place(2, 2, backend, {.optimizer = plain_sgd(0.05)});
    expect_exits(run_ranks(place.processes(),
                           [&](int process) {
                             at::set_num_threads(1);
                             if (process == 1) {
                               std::thread([&] {
                                 (void)place.meeting().store->get("now",
                                                                  Deadline::after(seconds(15)));
                                 std::raise(SIGKILL);
                               }).detach();
                             }
                             if (process < 2) return (void)place.serve(process);
                             const int number = process - 2;
                             auto model = line();
                             ps::Worker worker(model, place.meeting(), number);
                             std::string text = message_of<PeerLost>([&] {
                               for (int step = 0; step < 100000; ++step) {
                                 if (step == 3) place.meeting().store->set("now", "1");
                                 make_step(worker, model, step);
                               }
                             });
                             expect_contains(text, "parameter server 1 of 2, ");
                             EXPECT_EQ(message_of<PeerLost>([&] { worker.pull(); }), text);
                           }),
                 /*killed=*/1);
  }
}

// A worker joins a run of two workers, which wait for it in the middle, and gets their values.
TEST(JoiningWorker, BeginsWithTheNextStepOnAllServers) {
  constexpr int before = 5, together = 6;
  Servers place(2, 2, "shm", {.optimizer = plain_sgd(0.05)});
  expect_ranks(5, [&](int process) {
    at::set_num_threads(1);
    auto store = place.meeting().store;
    if (process < 2) {
      ps::ServerReport report = place.serve(process);
      EXPECT_EQ(report.joined, 3);
      EXPECT_EQ(report.updates, before + together);
      return;
    }
    auto model = line();
    if (process == 4) {
      (void)store->get("half", Deadline::after(seconds(15)));
      fill_parameters(*model, 99);
      ps::Worker worker(model, place.meeting(), std::nullopt);
      EXPECT_EQ(worker.number(), 2);
      EXPECT_EQ(worker.steps(), before);
      store->set("joined", "1");
      for (int step = before; step < before + together; ++step)
        make_step(worker, model, 3 * step + 2);
      store->set("bits", std::to_string(model->weight.view(at::kInt).sum().item<std::int64_t>()));
      return;
    }
    ps::Worker worker(model, place.meeting(), process - 2);
    for (int step = 0; step < before + together; ++step) {
      if (step == before) {
        store->set("half", "1");
        (void)store->get("joined", Deadline::after(seconds(15)));
      }
      make_step(worker, model, 3 * step + worker.number());
    }
    EXPECT_EQ(std::to_string(model->weight.view(at::kInt).sum().item<std::int64_t>()),
              store->get("bits", Deadline::after(seconds(15))));
  });
}

std::string first_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(ServerInput, WhatCannotBeIsRefusedInOneLine) {
  Servers place(3, 1, "shm", {});
  auto refusal = [&](const std::function<void(ps::Meeting&, ps::ServerOptions&)>& change,
                     int number = 0) {
    ps::Meeting meeting = place.meeting();
    ps::ServerOptions options{.optimizer = plain_sgd(1)};
    change(meeting, options);
    return first_error([&] { ps::Server(meeting, number, options); });
  };
  expect_contains(refusal([](auto&, auto& options) { options.staleness = -1; }),
                  "staleness must be 0 or more, found -1");
  expect_contains(refusal([](auto&, auto& options) { options.staleness = 4; }),
                  "staleness 4 is given without Consistency::stale_synchronous");
  expect_contains(refusal([](auto&, auto& options) { options.optimizer = nullptr; }),
                  "ServerOptions::optimizer must be set");
  expect_contains(refusal([](auto&, auto&) {}, 3), "expected a number from 0 to 2, found 3");
  expect_contains(refusal([](auto& meeting, auto&) { meeting.servers = 0; }), "found 0");
  expect_contains(refusal([](auto& meeting, auto&) { meeting.workers = 0; }), "found 0");
  expect_contains(refusal([](auto& meeting, auto&) { meeting.backend = "tcp"; }), "found 'tcp'");
  expect_contains(refusal([](auto& meeting, auto&) { meeting.store = nullptr; }),
                  "store must not be null");
  auto model = line();
  expect_contains(first_error([&] { ps::Worker worker(model, place.meeting(), 1); }),
                  "expected a worker's number from 0 to 0, found 1");
}

TEST(ServerInput, AListOfServersWithAHoleIsNamed) {
  Servers place(3, 1, "shm", {.optimizer = plain_sgd(1)});
  place.join_timeout = milliseconds(700);
  expect_ranks(3, [&](int process) {
    if (process < 2) {
      const int number = 2 * process;  // 0 and 2, but not 1
      expect_contains(first_error([&] { (void)place.serve(number); }),
                      "worker 0 of 1 did not arrive within");
      return;
    }
    auto model = line();
    expect_contains(first_error([&] { ps::Worker worker(model, place.meeting(), 0); }),
                    "server 1 of 3 did not arrive within 700ms");
  });
}

TEST(ServerInput, DifferentKeysAreNamedOnAllSides) {
  Servers place(1, 2, "shm", {.optimizer = plain_sgd(1)});
  expect_ranks(3, [&](int process) {
    if (process == 0) {
      expect_contains(first_error([&] { (void)place.serve(0); }),
                      "parameters differ: worker 0 has weight [1, 3]");
      return;
    }
    torch::nn::Linear model(process == 1 ? 3 : 4, 1);
    std::string text = first_error([&] {
      ps::Worker worker(model, place.meeting(), process - 1);
      worker.step();
    });
    expect_contains(text, "parameters differ: worker 0 has weight [1, 3]");
    expect_contains(text, "worker 1 has weight [1, 4]");
  });
}

TEST(ServerInput, OptionsAndNumbersMustFit) {
  Servers place(2, 1, "shm", {});
  place.join_timeout = seconds(2);
  expect_ranks(4, [&](int process) {
    auto store = place.meeting().store;
    if (process == 0)
      return (void)first_error(
          [&] { ps::Server(place.meeting(), 0, {.optimizer = plain_sgd(1)}).run(); });
    if (process == 1)
      return (void)first_error([&] {
        ps::Server(place.meeting(), 1,
                   {.optimizer = plain_sgd(1), .consistency = ps::Consistency::asynchronous})
            .run();
      });
    if (process == 3) {
      (void)store->get("server/0", Deadline::after(seconds(15)));
      expect_contains(
          first_error([&] { ps::Server(place.meeting(), 0, {.optimizer = plain_sgd(1)}).run(); }),
          "parameter server 0: another server with this number exists");
      return;
    }
    auto model = line();
    expect_contains(first_error([&] { ps::Worker worker(model, place.meeting(), 0); }),
                    "parameter server 0 has servers 2, workers 1, synchronous, staleness 0; "
                    "parameter server 1 has servers 2, workers 1, asynchronous");
  });
}

// An exception in an update ends the run on all processes.
TEST(ServerInput, AnUpdateThatFailsIsToldToAll) {
  ps::ServerOptions options{.optimizer = plain_sgd(1)};
  options.before_update = [](torch::optim::Optimizer&, std::int64_t updates) {
    if (updates == 2) throw std::out_of_range("no rate for that step");
  };
  Servers place(1, 2, "shm", options);
  expect_ranks(3, [&](int process) {
    if (process == 0) {
      EXPECT_THROW((void)place.serve(0), std::out_of_range);
      return;
    }
    auto model = line();
    ps::Worker worker(model, place.meeting(), process - 1);
    std::string text = first_error([&] {
      for (int step = 0; step < 10; ++step) make_step(worker, model, step);
    });
    expect_contains(text, "parameter server 0 of 1, ");
    expect_contains(text, "update 2 of parameter server 0 failed: no rate for that step");
  });
}

}  // namespace
}  // namespace lockstep
