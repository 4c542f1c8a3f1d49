// The order of Sampler for a program that uses LibTorch's own data loader:
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

// A handle: copies refer to the same sampler, so that a program can still call save(), load() and
// set_epoch() after it passed the sampler to make_data_loader(). Not thread-safe. During a pass
// over the loader only save() may be called.
class TorchSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit TorchSampler(lockstep::data::Sampler sampler);

  // Makes the next pass begin at the first sample of `epoch`. Without this call the first pass is
  // epoch 0.
  void set_epoch(std::int64_t epoch);
  [[nodiscard]] std::int64_t epoch() const;
  // Returns the number of samples requested in this epoch. A loader with workers requests samples
  // ahead of the program.
  [[nodiscard]] std::size_t index() const;

  // Called by begin() of a loader. Continues with the next epoch if any sample was requested since
  // the last reset. `new_size` replaces the number of samples.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  // Returns at most `batch_size` indices, or std::nullopt at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // Saves and loads the epoch and the position in it. The next pass after load() continues there.
  // If all samples of the epoch were requested before save(), the next pass is the next epoch. The
  // program supplies the number of samples, seed, world and the other options again: if one
  // differs, load() throws BadInput that names the first difference, and changes nothing.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
