#include <lockstep/data/loader_plan.h>

#include "base/check.h"
#include "base/escaped.h"
#include "sys/bounded_json.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace lockstep::data {
namespace {

Sampler sampler_for(std::int64_t samples, const LoaderOptions& options) {
  check(options.batch_size >= 1 && options.workers >= 0 && options.prefetch >= 1,
        "loader: expected batch_size >= 1, workers >= 0 and prefetch >= 1, found {}, {} and {}",
        options.batch_size, options.workers, options.prefetch);
  check(options.batch_size >= options.group.size(),
        "loader: expected a batch_size of at least the number of ranks, {}, found {}",
        options.group.size(), options.batch_size);
  check(!options.drop_last || !options.uneven, "loader: drop_last and uneven cannot both be set");
  return Sampler(samples, {.rank = options.group.rank(),
                           .world = options.group.size(),
                           .seed = options.seed,
                           .shuffle = options.shuffle,
                           // Full batches may end anywhere in the turns of the ranks.
                           .uneven = options.uneven || options.drop_last});
}

// Returns the number of global batches.
std::int64_t batches_of(std::int64_t samples, const LoaderOptions& options) {
  const bool has_tail = !options.drop_last && samples % options.batch_size != 0;
  return samples / options.batch_size + (has_tail ? 1 : 0);
}

// Returns the number of batches up to and including the one with this rank's last sample.
std::int64_t own_batches(const Sampler& sampler, const LoaderOptions& options) {
  if (sampler.size() == 0) return 0;
  const std::int64_t last = (sampler.size() - 1) * options.group.size() + options.group.rank();
  return last / options.batch_size + 1;
}

void check_equal(const char* field, std::uint64_t expected, std::uint64_t found) {
  check_input(expected == found, "resuming a loader: expected {} {}, found {}", field, expected,
              found);
}

}  // namespace

LoaderPlan::LoaderPlan(std::int64_t samples, const LoaderOptions& options)
    : sampler_(sampler_for(samples, options)),
      batch_size_(options.batch_size),
      drop_last_(options.drop_last),
      end_(batches_of(samples, options)),
      batches_(options.uneven ? own_batches(sampler_, options) : end_) {
  check_input(samples != 0, "loader: expected a dataset with samples, found an empty one");
  check_input(!options.drop_last || batches_ != 0,
              "loader: expected at least {} samples, because drop_last needs a full batch of all "
              "ranks ({}), found {}",
              batch_size_, options.group.size(), samples);
}

// The sampler distributes the order in turn: rank r has the positions r, r + ranks, ...
std::int64_t LoaderPlan::first_of(std::int64_t batch) const {
  const SamplerOptions& options = sampler_.options();
  return (batch * batch_size_ - options.rank + options.world - 1) / options.world;
}

// The last batch contains all remaining samples. A rank without a sample in it reads its last
// sample again, as padding.
c10::ArrayRef<std::size_t> LoaderPlan::piece(const std::vector<std::size_t>& order,
                                             std::int64_t batch) const {
  const auto size = static_cast<std::int64_t>(order.size());
  const std::int64_t begin = std::min(first_of(batch), size - 1);
  const bool is_last = batch + 1 == end_ && !drop_last_;
  const std::int64_t end = is_last ? size : std::min(first_of(batch + 1), size);
  return c10::ArrayRef(order).slice(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(end - begin));
}

LoaderState LoaderPlan::state_at(std::int64_t epoch, std::int64_t batches) const {
  const SamplerOptions& options = sampler_.options();
  return {.epoch = epoch,
          .batches = batches,
          .seed = options.seed,
          .samples = sampler_.samples(),
          .global_batch = batch_size_,
          .shuffle = options.shuffle,
          .drop_last = drop_last_};
}

void LoaderPlan::check(const LoaderState& state) const {
  const LoaderState own = state_at(0, 0);
  check_equal("seed", own.seed, state.seed);
  check_equal("samples", static_cast<std::uint64_t>(own.samples),
              static_cast<std::uint64_t>(state.samples));
  check_equal("global_batch", static_cast<std::uint64_t>(own.global_batch),
              static_cast<std::uint64_t>(state.global_batch));
  check_equal("shuffle", own.shuffle, state.shuffle);
  check_equal("drop_last", own.drop_last, state.drop_last);
  check_input(state.epoch >= 0 && state.batches >= 0 && state.batches <= end_,
              "resuming a loader: expected an epoch >= 0 and 0 to {} batches, found {} and {}",
              end_, state.epoch, state.batches);
}

namespace {

// Takes a field out of `fields`, so that the fields left at the end are the unknown ones.
template <class Value>
void take(nlohmann::json& fields, const char* name, Value& value) {
  constexpr bool is_flag = std::is_same_v<Value, bool>;
  const auto field = fields.find(name);
  check_input(field != fields.end(), "reading a loader state: expected a field {}, found none",
              name);
  bool fits = false;
  if constexpr (is_flag)
    fits = field->is_boolean();
  else
    fits = field->is_number_unsigned() && std::in_range<Value>(field->get<std::uint64_t>());
  check_input(fits, "reading a loader state: expected {} to be {}, found {}", name,
              is_flag ? "true or false" : "a number", escaped(field->dump()));
  value = field->get<Value>();
  fields.erase(field);
}

nlohmann::json fields_in(std::string_view text) {
  try {
    return sys::parse_json(text);
  } catch (const BadInput& error) {
    throw BadInput(formatted("reading a loader state: {}", error.what()));
  }
}

}  // namespace

std::string LoaderState::to_text() const {
  return nlohmann::ordered_json{
      {"epoch", epoch},        {"batches", batches},           {"seed", seed},
      {"samples", samples},    {"global_batch", global_batch}, {"shuffle", shuffle},
      {"drop_last", drop_last}}
      .dump();
}

LoaderState LoaderState::from_text(std::string_view text) {
  nlohmann::json fields = fields_in(text);
  check_input(fields.is_object(), "reading a loader state: expected an object, found {}",
              escaped(text));
  LoaderState state;
  take(fields, "epoch", state.epoch);
  take(fields, "batches", state.batches);
  take(fields, "seed", state.seed);
  take(fields, "samples", state.samples);
  take(fields, "global_batch", state.global_batch);
  take(fields, "shuffle", state.shuffle);
  take(fields, "drop_last", state.drop_last);
  check_input(fields.empty(), "reading a loader state: expected no other fields, found {}",
              fields.empty() ? std::string() : escaped(fields.begin().key()));
  return state;
}

}  // namespace lockstep::data
