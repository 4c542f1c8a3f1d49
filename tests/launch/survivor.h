// A worker that keeps its process between rounds. It implements the protocol of
// src/elastic/round_client.h itself.
#pragma once

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include <lockstep/base/deadline.h>
#include <lockstep/store/open.h>
#include <lockstep/store/store.h>
#include "rank_env/rank_info.h"

namespace lockstep::launch {

struct Survivor {
  static constexpr std::chrono::seconds soon{20}, limit{30};

  std::shared_ptr<Store> store =
      open_store(std::getenv("LOCKSTEP_STORE"), rank_env::read_secret(), soon);
  std::string name = std::getenv("LOCKSTEP_WORKER");
  int round = std::atoi(std::getenv("LOCKSTEP_ROUND"));

  [[nodiscard]] std::string key(const std::string& what) const {
    return "lockstep-round/" + std::to_string(round) + "/" + what;
  }
  // Announces that this worker keeps its process.
  void survive() const { store->set(key("survivors/" + name), "1"); }
  // Blocks until all workers of the round have announced that they keep their processes.
  void wait_for_survivors() const {
    std::istringstream lines(store->get(key("workers"), Deadline::after(soon)));
    for (std::string rank, worker, rest; lines >> rank >> worker && std::getline(lines, rest);)
      static_cast<void>(store->get(key("survivors/" + worker), Deadline::after(limit)));
  }
  // This worker's rank in the round, from the list of workers.
  [[nodiscard]] int rank() const {
    std::istringstream lines(store->get(key("workers"), Deadline::after(soon)));
    for (std::string line; std::getline(lines, line);)
      if (line.find(" " + name + " ") != std::string::npos) return std::stoi(line);
    return -1;
  }
  // Leaves the round when it has ended.
  void leave() const {
    static_cast<void>(store->get(key("ended"), Deadline::after(limit)));
    store->set(key("waiting/" + name), "1");
  }
  void wait_for_next() {
    leave();
    while (std::stoi(store->get("lockstep-round/number", Deadline::after(soon))) <= round)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++round;
  }
  void say() const { std::cout << "says " << round << "/" << rank() << "/" << name << std::endl; }
};

}  // namespace lockstep::launch
