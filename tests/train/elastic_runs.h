// Elastic runs of the trainer under a small agent, and comparisons of their results.
#pragma once

#include <lockstep/train/trainer.h>

#include "elastic/small_agent.h"
#include "train/runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace lockstep::train {

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline RunSetup elastic_setup(RunSetup options, const std::string& name) {
  options.elastic = true;
  options.out += "-" + name;
  return options;
}

inline void expect_same_run(const RunSetup& one, const RunSetup& other) {
  EXPECT_FALSE(bytes_of_file(std::filesystem::path(one.out) / "model.safetensors").empty());
  EXPECT_EQ(bytes_of_file(std::filesystem::path(one.out) / "model.safetensors"),
            bytes_of_file(std::filesystem::path(other.out) / "model.safetensors"))
      << other.out;
  expect_same_rows(one, other);
}

// Runs a worker, and discards its progress lines.
inline int train_worker(const RunSetup& options) {
  if (std::freopen("/dev/null", "w", stdout) == nullptr) return 2;
  auto task = options.make();
  const auto report = train_elastically(*task, options);
  return !report || report->step == options.steps ? 0 : 3;
}

inline std::int64_t rows_in(const RunSetup& options) {
  std::ifstream file(std::filesystem::path(options.out) / "metrics.jsonl");
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

inline void wait_for_rows(const RunSetup& options, std::int64_t rows) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (rows_in(options) < rows && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// Kills and replaces one of four ranks. When metrics.jsonl has `second` rows, kills two ranks; the
// remaining two train until it has `last` rows.
inline void kill_and_shrink(test::SmallAgent& agent, const RunSetup& run, std::int64_t second,
                            std::int64_t last) {
  agent.begin_round(4);
  wait_for_rows(run, 5);
  agent.kill(1);
  agent.begin_round(4);
  wait_for_rows(run, second);
  agent.kill(0);
  agent.kill(3);
  agent.begin_round(2);
  wait_for_rows(run, last);
}

}  // namespace lockstep::train
