// Sampler's order for a program that keeps LibTorch's own data loader:
//
//   lockstep::data::TorchSampler sampler(lockstep::data::Sampler(count, {.rank = 1, .world = 4}));
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);
//   for (int epoch = 0; epoch < 10; ++epoch)
//     for (auto& batch : *loader) ...    // each pass over the loader is the next epoch
#pragma once

#include <lockstep/data/sampler.h>

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// A handle: copies are the same sampler, so that a program can still save, load and set_epoch() the
// one that it gave to make_data_loader. One thread at a time; not while a pass over the loader is
// under way, except for save().
class TorchSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit TorchSampler(lockstep::data::Sampler sampler);

  // The next pass is this epoch, from its first sample. Without it the first pass is epoch 0.
  void set_epoch(std::int64_t epoch);
  [[nodiscard]] std::int64_t epoch() const;
  // Samples asked for in this epoch. A loader with workers asks ahead of what the program has seen.
  [[nodiscard]] std::size_t index() const;

  // What begin() of a loader calls: goes on to the next epoch if any sample was asked for since the
  // last reset. A new number of samples replaces the old one.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  // At most `batch_size` indices; nothing at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // Epoch and place. The next pass after a load goes on there. Number of samples, seed, world and
  // the rest are given by the program again: a load throws BadInput that names the first
  // difference, and changes nothing.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
