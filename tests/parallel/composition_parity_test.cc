// Compares a hundred steps of a GPT on each mesh with one process, and prints the rows of the table
// in docs/reference/composition.md.
#include "parallel/composition.h"

#include "support/torch/engine_test.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>

namespace lockstep {
namespace {

using namespace test;

constexpr int steps = 100;

const std::vector<double>& losses_of_one(at::ScalarType dtype) {
  static std::map<at::ScalarType, std::vector<double>> known;
  auto& losses = known[dtype];
  if (losses.empty())
    losses = test::losses_of_one(made_alike([] { return models::Gpt(composed_gpt()); }, dtype),
                                 dtype, steps);
  return losses;
}

double difference(const Composition& how, at::ScalarType dtype) {
  const std::vector<double>& expected = losses_of_one(dtype);
  double largest = 0;
  run_group(
      Engine::local, ranks_of(how),
      [&](Group world) {
        const bool is_root = world.is_root();
        ComposedGpt composed = test::composed(std::move(world), how, dtype);
        const double own = largest_difference(composed, dtype, expected);
        if (is_root) largest = own;
      },
      std::chrono::seconds(120));
  return largest;
}

class Parity : public testing::TestWithParam<Composition> {};

TEST_P(Parity, AHundredStepsAreThoseOfOneProcess) {
  const double in_float = difference(GetParam(), at::kFloat);
  const double in_double = difference(GetParam(), at::kDouble);
  EXPECT_LE(in_float, 2e-6);
  EXPECT_LE(in_double, 1e-12);
  std::cout << "| " << text_of(GetParam()) << " | " << in_float << " | " << in_double << " |\n";
}

std::vector<Composition> rows() {
  std::vector<Composition> all = {{.axes = {{"tp", 2}}},
                                  {.axes = {{"tp", 4}}},
                                  {.axes = {{"tp", 2}}, .sequence = true},
                                  {.axes = {{"tp", 2}}, .checkpoints = true}};
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"})
    all.push_back({.axes = {{"pp", 2}}, .schedule = schedule});
  all.push_back({.axes = {{"pp", 4}}});
  all.push_back({.axes = {{"dp", 2}, {"tp", 2}}});
  all.push_back({.axes = {{"fsdp", 2}, {"tp", 2}}});
  all.push_back({.axes = {{"fsdp", 2}, {"tp", 2}}, .checkpoints = true});
  all.push_back({.axes = {{"pp", 2}, {"tp", 2}}});
  all.push_back({.axes = {{"pp", 2}, {"fsdp", 2}}});
  all.push_back({.axes = {{"cp", 2}}});
  all.push_back({.axes = {{"fsdp", 2}, {"cp", 2}}});
  all.push_back({.axes = {{"pp", 2}, {"cp", 2}}});
  all.push_back({.axes = {{"pp", 2}, {"dp", 2}, {"tp", 2}}, .micro_batches = 2});
  all.push_back(
      {.axes = {{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, .checkpoints = true, .micro_batches = 2});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Rows, Parity, testing::ValuesIn(rows()),
                         [](const testing::TestParamInfo<Composition>& info) {
                           return test_name_of(info.param);
                         });

}  // namespace
}  // namespace lockstep
