#include "elastic/small_agent.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

constexpr auto limit = std::chrono::seconds(30);

std::string key_in(std::int64_t round, const std::string& name) {
  return "lockstep-round/" + std::to_string(round) + "/" + name;
}

void set_variable(const std::string& name, const std::string& value) {
  ::setenv(name.c_str(), value.c_str(), 1);
}

bool has_ended(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

int collect(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return -1000;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

SmallAgent::SmallAgent(Body body, Options options)
    : body_(std::move(body)),
      options_(std::move(options)),
      store_(std::make_unique<FileStore>(folder_ / "store")) {
  std::filesystem::create_directory(commits());
}

SmallAgent::~SmallAgent() {
  for (const Worker& worker : workers_) {
    if (worker.pid <= 0) continue;
    ::kill(worker.pid, SIGKILL);
    ::waitpid(worker.pid, nullptr, 0);
  }
}

void SmallAgent::end_round(const std::string& why) {
  store_->set(key_in(round_, "ended"), why);
  const auto end = std::chrono::steady_clock::now() + limit;
  for (Worker& worker : workers_) {
    while (worker.pid > 0 && !store_->try_get(key_in(round_, "waiting/" + worker.name))) {
      if (has_ended(worker.pid)) {
        (void)collect(worker.pid);
        worker.pid = -1;
      }
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error("worker " + worker.name + " does not leave its round");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

void SmallAgent::begin_round(int ranks, const std::string& why) {
  if (round_ >= 0) end_round(why);
  ++round_;
  std::vector<Worker> next(static_cast<std::size_t>(ranks));
  std::vector<Worker> others;
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].pid <= 0) continue;
    if (rank < next.size())
      next[rank] = workers_[rank];
    else
      others.push_back(workers_[rank]);
  }
  for (Worker& place : next)
    if (place.pid <= 0 && !others.empty()) {
      place = others.back();
      others.pop_back();
    }
  std::string lines;
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    if (next[rank].pid <= 0) next[rank].name = "0." + std::to_string(started_++);
    const std::string number = std::to_string(rank);
    lines += number + " " + next[rank].name + " 0 " + number + " " + std::to_string(ranks) +
             " localhost\n";
  }
  workers_ = std::move(next);
  store_->set(key_in(round_, "workers"), lines);
  store_->set("lockstep-round/number", std::to_string(round_));
  for (const Worker& unwanted : others) EXPECT_EQ(collect(unwanted.pid), 0) << unwanted.name;
  for (std::size_t rank = 0; rank < workers_.size(); ++rank)
    if (workers_[rank].pid <= 0) start(rank, workers_.size());
}

void SmallAgent::start(std::size_t rank, std::size_t ranks) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid > 0) {
    workers_[rank].pid = pid;
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  be_worker(rank, ranks);
}

void SmallAgent::be_worker(std::size_t rank, std::size_t ranks) {
  set_variable("RANK", std::to_string(rank));
  set_variable("WORLD_SIZE", std::to_string(ranks));
  set_variable("LOCAL_RANK", std::to_string(rank));
  set_variable("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set_variable("TORCHELASTIC_RUN_ID", folder_.path().string());
  set_variable("TORCHELASTIC_RESTART_COUNT", std::to_string(round_));
  set_variable("LOCKSTEP_STORE", "file:" + (folder_ / "store").string());
  set_variable("LOCKSTEP_WORKER", workers_[rank].name);
  set_variable("LOCKSTEP_ROUND", std::to_string(round_));
  set_variable("LOCKSTEP_COMMITS", commits().string());
  set_variable("LOCKSTEP_BACKEND", options_.backend);
  set_variable("LOCKSTEP_ARENA", "64MiB");
  for (const auto& [name, value] : options_.environment) set_variable(name, value);
  int code = 1;
  try {
    code = body_();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[worker %s] exception: %s\n", workers_[rank].name.c_str(), error.what());
  }
  if (testing::Test::HasFailure()) code = 1;
  std::fflush(nullptr);
  ::_exit(code);
}

void SmallAgent::kill(int rank, int signal) {
  Worker& worker = workers_.at(static_cast<std::size_t>(rank));
  if (worker.pid <= 0) return;
  ::kill(worker.pid, signal);
  (void)collect(worker.pid);
  worker.pid = -1;
}

std::vector<int> SmallAgent::wait() {
  std::vector<int> codes;
  for (Worker& worker : workers_) {
    codes.push_back(worker.pid > 0 ? collect(worker.pid) : -1000);
    worker.pid = -1;
  }
  return codes;
}

}  // namespace lockstep::test
