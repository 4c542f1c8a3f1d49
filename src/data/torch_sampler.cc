#include <lockstep/data/torch_sampler.h>

#include "base/check.h"

#include <torch/serialize/archive.h>

#include <algorithm>
#include <string>

namespace lockstep::data {

struct TorchSampler::State {
  lockstep::data::Sampler sampler;
  std::int64_t epoch = 0;
  std::size_t index = 0;
  bool begun = false;                                  // next() was called since the last reset
  std::optional<std::vector<std::size_t>> order = {};  // of this epoch, computed on first use
};

namespace {

using Field = std::pair<std::string, std::int64_t>;

// The fields in which the saved and the loading sampler must agree.
std::vector<Field> fields(const Sampler& sampler) {
  const SamplerOptions& options = sampler.options();
  return {{"samples", sampler.samples()}, {"rank", options.rank},
          {"world", options.world},       {"seed", static_cast<std::int64_t>(options.seed)},
          {"shuffle", options.shuffle},   {"drop_last", options.drop_last},
          {"uneven", options.uneven}};
}

std::int64_t read(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  check_input(archive.try_read(key, value) && value.isInt(),
              "loading a TorchSampler: expected an integer named {}, found none", key);
  return value.toInt();
}

}  // namespace

TorchSampler::TorchSampler(lockstep::data::Sampler sampler)
    : state_(std::make_shared<State>(State{sampler})) {}

void TorchSampler::set_epoch(std::int64_t epoch) {
  *state_ = State{.sampler = state_->sampler, .epoch = epoch};
}

std::int64_t TorchSampler::epoch() const { return state_->epoch; }

std::size_t TorchSampler::index() const { return state_->index; }

void TorchSampler::reset(std::optional<std::size_t> new_size) {
  State& state = *state_;
  if (state.begun) {
    ++state.epoch;
    state.index = 0;
  }
  state.begun = false;
  state.order.reset();
  if (!new_size) return;
  state.sampler =
      lockstep::data::Sampler(static_cast<std::int64_t>(*new_size), state.sampler.options());
  state.index = 0;
}

std::optional<std::vector<std::size_t>> TorchSampler::next(std::size_t batch_size) {
  State& state = *state_;
  if (!state.order) state.order = state.sampler.order(state.epoch);
  state.begun = true;
  const auto begin = state.order->begin() + static_cast<std::ptrdiff_t>(state.index);
  const std::size_t count = std::min(batch_size, state.order->size() - state.index);
  if (count == 0) return std::nullopt;
  state.index += count;
  return std::vector<std::size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void TorchSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", c10::IValue(state_->epoch));
  archive.write("index", c10::IValue(static_cast<std::int64_t>(state_->index)));
  for (const auto& [key, value] : fields(state_->sampler)) archive.write(key, c10::IValue(value));
}

void TorchSampler::load(torch::serialize::InputArchive& archive) {
  for (const auto& [key, expected] : fields(state_->sampler)) {
    const std::int64_t found = read(archive, key);
    check_input(found == expected, "loading a TorchSampler: expected {} {}, found {}", key,
                expected, found);
  }
  const std::int64_t epoch = read(archive, "epoch");
  const std::int64_t index = read(archive, "index");
  check_input(index >= 0 && index <= state_->sampler.size(),
              "loading a TorchSampler: expected an index from 0 to {}, found {}",
              state_->sampler.size(), index);
  // If the whole epoch was requested, reset() would have gone on to the next one.
  const bool is_over = index > 0 && index == state_->sampler.size();
  *state_ = State{.sampler = state_->sampler,
                  .epoch = is_over ? epoch + 1 : epoch,
                  .index = is_over ? 0 : static_cast<std::size_t>(index)};
}

}  // namespace lockstep::data
