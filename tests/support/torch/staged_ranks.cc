#include "support/torch/staged_ranks.h"

#include "comm/backend/staged_backend.h"
#include "comm/backends/local/backend.h"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

namespace lockstep::test {

void run_staged(int size, const std::function<void(Group)>& rank) {
  auto world = std::make_shared<local::World>(size, GroupNames());
  std::vector<std::jthread> threads;
  for (int number = 0; number < size; ++number) {
    threads.emplace_back([&, number] {
      auto backend = std::make_shared<local::LocalBackend>(world, number, size);
      Group group(std::make_shared<StagedBackend>(backend), "world", std::chrono::seconds(20));
      try {
        rank(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << number << ": " << error.what();
      }
    });
  }
}

}  // namespace lockstep::test
