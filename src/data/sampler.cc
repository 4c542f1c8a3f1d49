#include <lockstep/data/sampler.h>

#include "base/check.h"

#include <ATen/CPUGeneratorImpl.h>

namespace lockstep::data {
namespace {

std::int64_t size_for(std::int64_t samples, const SamplerOptions& options) {
  check(
      samples >= 0 && options.rank >= 0 && options.rank < options.world &&
          !(options.drop_last && options.uneven),
      "Sampler: expected samples >= 0, rank in [0, world) and not both drop_last and uneven, found "
      "samples {}, rank {}, world {}, drop_last {:d}, uneven {:d}",
      samples, options.rank, options.world, options.drop_last, options.uneven);
  const std::int64_t whole = samples / options.world;
  const std::int64_t left = samples % options.world;
  if (options.drop_last || left == 0) return whole;
  return options.uneven && options.rank >= left ? whole : whole + 1;
}

// Returns the sample at each position, for all ranks.
at::Tensor global_order(std::int64_t samples, const SamplerOptions& options, std::int64_t epoch) {
  if (!options.shuffle) return at::arange(samples, at::kLong);
  at::Generator generator =
      at::detail::createCPUGenerator(options.seed + static_cast<std::uint64_t>(epoch));
  return at::randperm(samples, generator, at::kLong);
}

}  // namespace

Sampler::Sampler(std::int64_t samples, SamplerOptions options)
    : samples_(samples), options_(options), size_(size_for(samples, options)) {}

std::vector<std::size_t> Sampler::order(std::int64_t epoch) const {
  const at::Tensor global = global_order(samples_, options_, epoch);
  const auto* sample_at = global.const_data_ptr<std::int64_t>();
  std::vector<std::size_t> mine(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i) {
    const std::int64_t place = i * options_.world + options_.rank;
    mine[static_cast<std::size_t>(i)] = static_cast<std::size_t>(sample_at[place % samples_]);
  }
  return mine;
}

}  // namespace lockstep::data
