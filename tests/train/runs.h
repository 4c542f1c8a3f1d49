// Small runs of the trainer, and checks of their results.
#pragma once

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/train/trainer.h>

#include "support/difference.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"
#include "train/run_setup.h"
#include "train/tiny_data.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace lockstep::train {

// Returns the settings that the runs below share.
inline RunSetup tiny(const std::string& task, const test::TemporaryFolder& folder) {
  RunSetup options(task);
  options.out = folder / "out";
  options.save_every = 4;
  options.keep_checkpoints = 0;
  options.log_every = 1;
  options.threads = 1;  // so that ranks can be forked from a test that has trained itself
  return options;
}

inline RunSetup tiny_language_model(const std::string& task, const test::TemporaryFolder& folder) {
  test::write_tiny_text(folder / "text.txt");
  RunSetup options = tiny(task, folder);
  options.data = folder / "text.txt";
  options.steps = 8;
  options.layers = options.heads = 2;
  options.width = 16;
  options.block = 8;
  options.warmup = 2;
  options.eval_every = 4;
  return options;
}

inline RunSetup tiny_gpt(const test::TemporaryFolder& folder) {
  return tiny_language_model("gpt", folder);
}

inline RunSetup tiny_mnist(const test::TemporaryFolder& folder) {
  test::write_tiny_digits(folder.path(), 50, 17);
  RunSetup options = tiny("mnist", folder);
  options.data = folder.path();
  options.batch = 12;
  options.epochs = 2;  // with 5 steps each; the last step has 2 rows
  return options;
}

inline RunSetup tiny_cifar(const test::TemporaryFolder& folder) {
  test::write_tiny_photographs(folder.path(), 40, 20);
  RunSetup options = tiny("cifar", folder);
  options.data = folder.path();
  options.width = 4;
  options.batch = 12;
  options.epochs = 2;  // with 4 steps each; the last step has 4 rows
  return options;
}

inline RunSetup tiny_mlp(const test::TemporaryFolder& folder) {
  RunSetup options = tiny("mlp", folder);
  options.steps = 8;
  options.batch = 12;
  return options;
}

inline void run(int ranks, const RunSetup& options) {
  test::run_group(test::BackendKind::shm, ranks, [&](Group group) { (void)train(options, group); });
}

inline std::vector<nlohmann::json> metrics_of(const std::filesystem::path& out) {
  std::vector<nlohmann::json> rows;
  std::ifstream file(out / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

inline double last_val_loss(const std::filesystem::path& out) {
  auto rows = metrics_of(out);
  return rows.empty() || !rows.back().contains("val_loss") ? NAN
                                                           : rows.back()["val_loss"].get<double>();
}

// Returns the largest difference of two tensors of the same sizes and dtype: 0 if they are bitwise
// equal, otherwise infinity if a difference is NaN.
inline double largest_difference(const at::Tensor& one, const at::Tensor& other) {
  const auto bytes_of = [](const at::Tensor& tensor) {
    return tensor.contiguous().view({-1}).view(at::kByte);
  };
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) {
    ADD_FAILURE() << "expected " << one.scalar_type() << " of shape " << one.sizes() << ", found "
                  << other.scalar_type() << " of shape " << other.sizes();
    return std::numeric_limits<double>::infinity();
  }
  if (bytes_of(one).equal(bytes_of(other))) return 0;
  const at::Tensor difference = one.to(at::kDouble) - other.to(at::kDouble);
  return test::nan_as_infinity(difference.abs().max().item<double>());
}

// Returns the largest difference between the models of two runs; 0 if they are bitwise equal.
inline double distance(const std::filesystem::path& a, const std::filesystem::path& b) {
  auto first = checkpoint::read_safetensors(a / "model.safetensors").tensors;
  auto second = checkpoint::read_safetensors(b / "model.safetensors").tensors;
  EXPECT_EQ(first.size(), second.size());
  double most = 0;
  for (const auto& [name, tensor] : first)
    most = std::max(most, largest_difference(tensor, second.at(name)));
  return most;
}

// Expects the same steps with bitwise equal losses.
inline void expect_same_rows(const RunSetup& one, const RunSetup& other) {
  auto expected = metrics_of(one.out), found = metrics_of(other.out);
  ASSERT_EQ(expected.size(), found.size()) << other.out;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i]["step"], i + 1);
    EXPECT_EQ(expected[i]["step"], found[i]["step"]);
    EXPECT_EQ(expected[i]["loss"], found[i]["loss"]) << other.out << ", step " << i + 1;
    EXPECT_EQ(expected[i].value("val_loss", -1.0), found[i].value("val_loss", -1.0)) << other.out;
  }
}

// Gives the rows after `step` a loss that no run has, so that a test fails unless the resumed run
// writes these rows anew.
inline void spoil_rows_after(const std::filesystem::path& out, std::int64_t step) {
  std::vector<nlohmann::json> rows = metrics_of(out);
  std::ofstream file(out / "metrics.jsonl");
  for (nlohmann::json& row : rows) {
    if (row["step"].get<std::int64_t>() > step) row["loss"] = row["val_loss"] = 1e9;
    file << row.dump() << "\n";
  }
}

// Returns the run as it was when the checkpoint of `step` was the newest, which is the state after
// a kill. As after a kill, metrics.jsonl has rows of later steps.
inline RunSetup cut_at(RunSetup options, std::int64_t step) {
  namespace fs = std::filesystem;
  fs::path cut = options.out + "-cut";
  fs::copy(options.out, cut, fs::copy_options::recursive);
  for (const std::filesystem::path& folder : checkpoint::list_checkpoints(cut))
    if (checkpoint::read_training_state(folder).step > step) fs::remove_all(folder);
  fs::remove(cut / "model.safetensors");
  spoil_rows_after(cut, step);
  options.out = cut;
  options.resume = true;
  return options;
}

}  // namespace lockstep::train
