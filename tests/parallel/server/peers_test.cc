// Peers that stop, send nonsense, come too late, or come and go.
#include "parallel/server/connection.h"
#include "parallel/server/support.h"

#include <lockstep/module/state_dict.h>

#include <torch/nn/modules/linear.h>

#include <unistd.h>
#include <csignal>
#include <fstream>
#include <thread>

namespace lockstep {
namespace {

using namespace test;
using std::chrono::milliseconds;
using std::chrono::seconds;

torch::nn::Linear small_line() {
  torch::nn::Linear model(3, 1);
  fill_parameters(*model, 1);
  return model;
}

void step_of(ps::Worker& worker, torch::nn::Linear& model, int number) {
  worker.zero_grad();
  at::Tensor x = values({8, 3}, number);
  (model->forward(x) - x.sum(1, true)).square().mean().backward();
  worker.step();
}

class StoppedWorker : public testing::TestWithParam<ps::Consistency> {};

// A stopped worker does not end other processes. When it continues, it gets an error with the
// reason for its removal.
TEST_P(StoppedWorker, IsTakenOutAndTheRestGoesOn) {
  const bool is_stale = GetParam() == ps::Consistency::stale_synchronous;
  Servers place(
      2, 3, "shm",
      {.optimizer = plain_sgd(0.05), .consistency = GetParam(), .staleness = is_stale ? 2 : 0});
  place.timeout = seconds(1);
  std::vector<RankResult> results = run_ranks(place.processes(), [&](int process) {
    at::set_num_threads(1);
    auto store = place.meeting().store;
    if (process < 2) {
      EXPECT_EQ(place.serve(process).lost, std::vector<int>({2}));
      return;
    }
    const int number = process - 2;
    auto model = small_line();
    ps::Worker worker(model, place.meeting(), number);
    for (int step = 0; step < 12; ++step) {
      if (number == 2 && step == 3) {
        store->set("stopped", std::to_string(getpid()));
        std::raise(SIGSTOP);
      }
      step_of(worker, model, 3 * step + number);
    }
    if (number == 2) return;
    EXPECT_EQ(worker.steps(), 12);
    if (number == 0) kill(std::stoi(store->get("stopped", Deadline::after(seconds(5)))), SIGKILL);
  });
  for (std::size_t process = 0; process < results.size(); ++process) {
    if (process == 4) {
      EXPECT_EQ(results[process].signal, SIGKILL);
    } else {
      EXPECT_TRUE(results[process].ok()) << "process " << process << ": " << results[process];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, StoppedWorker,
                         testing::Values(ps::Consistency::synchronous,
                                         ps::Consistency::stale_synchronous));

// The actions of a foreign worker after it has connected; the worker then waits until it is
// removed.
using Say = std::function<void(ps::RemoteServers&, const std::vector<ps::Key>&)>;

// Runs a server, a worker that trains, and a foreign worker that joins and calls `say`: the first
// worker continues.
void expect_survived(const Say& say, Duration timeout = seconds(20)) {
  Servers place(1, 1, "shm", {.optimizer = plain_sgd(0.05)});
  place.timeout = timeout;
  place.join_timeout = seconds(3);
  expect_ranks(3, [&](int process) {
    at::set_num_threads(1);
    auto store = place.meeting().store;
    if (process == 0) {
      EXPECT_EQ(place.serve(0).lost, std::vector<int>({1}));
      return;
    }
    if (process == 1) {
      auto model = small_line();
      ps::Worker worker(model, place.meeting(), 0);
      step_of(worker, model, 0);
      store->set("runs", "1");
      (void)store->get("said", Deadline::after(seconds(15)));
      for (int step = 1; step < 6; ++step) step_of(worker, model, step);
      return;
    }
    (void)store->get("runs", Deadline::after(seconds(15)));
    std::vector<ps::Key> keys{{.name = "weight", .dtype = 6, .sizes = {1, 3}},
                              {.name = "bias", .dtype = 6, .sizes = {1}}};
    ps::RemoteServers servers(place.meeting(), std::nullopt, keys);
    try {
      say(servers, keys);
      store->set("said", "1");
      servers.each("waiting", 0, [&](ps::RemoteServer& remote) {
        (void)remote.connection->receive(seconds(10));
      });
      ADD_FAILURE() << "the server has answered";
    } catch (const Error&) {
      store->set("said", "1");
    }
  });
}

void say_hello(ps::RemoteServers& servers, const std::vector<ps::Key>& keys) {
  const std::string text = ps::encode_keys(keys);
  servers.each("hello", 0, [&](ps::RemoteServer& remote) {
    remote.connection->send({ps::Message::hello, static_cast<std::int64_t>(text.size()), 0});
    remote.connection->send_text(text);
    (void)servers.answer(remote);
  });
}

void begin_as_worker(ps::RemoteServers& servers, const std::vector<ps::Key>& keys) {
  say_hello(servers, keys);
  servers.each("begin", 0, [&](ps::RemoteServer& remote) {
    remote.connection->send({ps::Message::begin, 1});
    (void)servers.answer(remote);
  });
}

TEST(BrokenPeer, RowsOfAPieceThatIsNotThereAreRefused) {
  for (std::int64_t piece : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 40})
    expect_survived([&](ps::RemoteServers& servers, const std::vector<ps::Key>& keys) {
      begin_as_worker(servers, keys);
      servers.each("rows", 0, [&](ps::RemoteServer& remote) {
        remote.connection->send({ps::Message::pull_rows, piece, 1});
        remote.connection->send(at::zeros({1}, at::kLong));
      });
    });
}

TEST(BrokenPeer, FewerThanNoElementsAndUnknownMessagesAreRefused) {
  for (ps::Header header :
       {ps::Header{ps::Message::pull_rows, 0, -5}, ps::Header{static_cast<ps::Message>(77), 0, 0},
        ps::Header{ps::Message::request, 0, 0}})
    expect_survived([&](ps::RemoteServers& servers, const std::vector<ps::Key>& keys) {
      begin_as_worker(servers, keys);
      servers.each("nonsense", 0,
                   [&](ps::RemoteServer& remote) { remote.connection->send(header); });
    });
}

TEST(BrokenPeer, KeysWithoutSenseAreRefused) {
  for (int dtype : {-1, 6, 99})
    expect_survived([&](ps::RemoteServers& servers, std::vector<ps::Key> keys) {
      keys[0].dtype = dtype;
      keys[0].element_bytes = 3;
      const std::string text = ps::encode_keys(keys);
      servers.each("hello", 0, [&](ps::RemoteServer& remote) {
        remote.connection->send({ps::Message::hello, static_cast<std::int64_t>(text.size()), 0});
        remote.connection->send_text(text);
      });
    });
}

// Updates wait for a worker that has asked where to begin, but only as long as joining may take.
TEST(BrokenPeer, OneThatNeverBeginsIsTakenOut) {
  expect_survived([](ps::RemoteServers& servers, const std::vector<ps::Key>& keys) {
    say_hello(servers, keys);
  });
}

// The last worker leaves while another one joins: all servers accept the new worker, or none does.
TEST(LateWorker, IsTakenByAllServersOrNone) {
  for (int round = 0; round < 6; ++round) {
    Servers place(3, 1, "shm", {.optimizer = plain_sgd(0.05)});
    expect_ranks(5, [&](int process) {
      at::set_num_threads(1);
      auto store = place.meeting().store;
      if (process < 3) {
        EXPECT_TRUE(place.serve(process).lost.empty());
        return;
      }
      auto model = small_line();
      if (process == 3) {
        ps::Worker worker(model, place.meeting(), 0);
        step_of(worker, model, 0);
        store->set("leaves", "1");
        if (round % 2 == 0) std::this_thread::sleep_for(milliseconds(20 * round));
        return;
      }
      (void)store->get("leaves", Deadline::after(seconds(15)));
      try {
        ps::Worker worker(model, place.meeting(), std::nullopt);
        step_of(worker, model, 1);
      } catch (const Aborted& error) {
        expect_contains(error.what(), "worker 1 came too late");
      }
    });
  }
}

TEST(LateWorker, IsToldThatTheRunIsOver) {
  Servers place(2, 1, "shm", {.optimizer = plain_sgd(0.05)});
  expect_ranks(4, [&](int process) {
    auto store = place.meeting().store;
    if (process < 2) {
      (void)place.serve(process);
      store->set("over" + std::to_string(process), "1");
      return;
    }
    auto model = small_line();
    if (process == 2) {
      ps::Worker worker(model, place.meeting(), 0);
      worker.leave();
      EXPECT_THROW(worker.pull(), InvalidArgument);
      return;
    }
    for (const char* server : {"over0", "over1"})
      (void)store->get(server, Deadline::after(seconds(15)));
    EXPECT_THROW((void)ps::Worker(model, place.meeting(), std::nullopt), Aborted);
  });
}

// Returns the private memory of this process, including thread stacks; shared memory of ranks
// varies.
double private_megabytes() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  for (int field = 0; field < 6; ++field) statm >> pages;  // "data" is the sixth
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// The memory that a server keeps for workers that have left does not grow.
TEST(ManyWorkers, ComeAndGo) {
  constexpr int first = 10, count = 40;
  ps::ServerOptions options{.optimizer = plain_sgd(0.05)};
  double before = 0;
  options.on_request = [&](std::string_view text, const auto&, auto*) {
    if (text == "first") before = private_megabytes();
    if (text == "last") EXPECT_LT(private_megabytes() - before, 100);
  };
  Servers place(1, 1, "shm", options);
  expect_ranks(2, [&](int process) {
    at::set_num_threads(1);
    if (process == 0) {
      EXPECT_EQ(place.serve(0).joined, 1 + count);
      return;
    }
    auto model = small_line();
    ps::Worker worker(model, place.meeting(), 0);
    for (int i = 0; i < count; ++i) {
      auto other = small_line();
      ps::Worker joined(other, place.meeting(), std::nullopt);
      if (i == first) worker.request("first");
    }
    worker.request("last");
  });
}

TEST(ServerInput, DifferentBuffersAreNamedOnAllSides) {
  Servers place(1, 2, "shm", {.optimizer = plain_sgd(1)});
  expect_ranks(3, [&](int process) {
    const char* words = "buffers or frozen parameters differ: worker 0 has first [4]";
    if (process == 0) {
      expect_contains(message_of<Mismatch>([&] { (void)place.serve(0); }), words);
      return;
    }
    torch::nn::Linear model(3, 1);  // as many bytes in both
    model->register_buffer("first", at::zeros({process == 1 ? 4 : 2}));
    model->register_buffer("second", at::zeros({process == 1 ? 2 : 4}));
    try {
      ps::Worker worker(model, place.meeting(), process - 1);
      worker.step();
      ADD_FAILURE() << "other buffers were taken";
    } catch (const Error& error) {
      expect_contains(error.what(), words);
      expect_contains(error.what(), "worker 1 has first [2]");
    }
  });
}

// A worker's request: every server gets it with its own parts and may change them; the worker waits
// for all servers.
TEST(Request, ReachesEveryServerWhileNothingElseDoes) {
  ps::ServerOptions options{.optimizer = plain_sgd(0.05)};
  options.on_request = [](std::string_view text, const std::vector<Part>& parts,
                          torch::optim::Optimizer* optimizer) {
    if (text == "fail") throw std::runtime_error("no such thing");
    EXPECT_EQ(text, "seven");
    EXPECT_EQ(optimizer == nullptr, parts.empty());
    at::NoGradGuard no_grad;
    for (const Part& part : parts) part.tensor.fill_(7);
  };
  Servers place(3, 1, "shm", options);
  expect_ranks(4, [&](int process) {
    if (process < 3) {
      expect_contains(message_of<std::runtime_error>([&] { (void)place.serve(process); }),
                      "no such thing");
      return;
    }
    torch::nn::Linear model(1, 2);  // two rows: one server keeps nothing, or little
    ps::Worker worker(model, place.meeting(), 0);
    bool is_meanwhile = false;
    worker.request("seven", [&] { is_meanwhile = true; });
    EXPECT_TRUE(is_meanwhile);
    worker.pull();
    EXPECT_TRUE(at::equal(model->weight, at::full({2, 1}, 7.0)));
    expect_contains(message_of<Aborted>([&] { worker.request("fail"); }), "failed: no such thing");
  });
}

}  // namespace
}  // namespace lockstep
