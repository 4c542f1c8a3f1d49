#include <lockstep/data/loader_plan.h>

#include <lockstep/base/error.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

namespace lockstep::data {
namespace {

Sampler sampler_for(std::int64_t samples, const LoaderOptions& options) {
  if (options.batch_size < 1 || options.workers < 0 || options.prefetch < 1) {
    throw InvalidArgument(
        c10::str("loader: expected batch_size >= 1, workers >= 0 and prefetch >= 1, found ",
                 options.batch_size, ", ", options.workers, " and ", options.prefetch));
  }
  if (options.batch_size < options.group.size()) {
    throw InvalidArgument(
        c10::str("loader: expected a batch_size of at least the number of ranks, ",
                 options.group.size(), ", found ", options.batch_size));
  }
  return Sampler(samples, {.rank = options.group.rank(),
                           .world = options.group.size(),
                           .seed = options.seed,
                           .shuffle = options.shuffle,
                           .drop_last = options.drop_last,
                           .uneven = options.uneven});
}

// Returns the number of global batches.
std::int64_t batches_of(std::int64_t samples, const LoaderOptions& options) {
  if (!options.drop_last) return (samples + options.batch_size - 1) / options.batch_size;
  return samples / options.group.size() * options.group.size() / options.batch_size;
}

// Returns the number of batches up to and including the one with this rank's last sample.
std::int64_t own_batches(const Sampler& sampler, const LoaderOptions& options) {
  if (sampler.size() == 0) return 0;
  const std::int64_t last = (sampler.size() - 1) * options.group.size() + options.group.rank();
  return last / options.batch_size + 1;
}

void check_equal(const char* field, std::uint64_t expected, std::uint64_t found) {
  if (expected != found) {
    throw BadInput(
        c10::str("resuming a loader: expected ", field, " ", expected, ", found ", found));
  }
}

}  // namespace

LoaderPlan::LoaderPlan(std::int64_t samples, const LoaderOptions& options)
    : sampler_(sampler_for(samples, options)),
      batch_size_(options.batch_size),
      end_(batches_of(samples, options)),
      batches_(options.uneven ? own_batches(sampler_, options) : end_) {
  if (samples == 0) throw BadInput("loader: expected a dataset with samples, found an empty one");
  if (options.drop_last && batches_ == 0) {
    throw BadInput(c10::str("loader: expected at least ", batch_size_,
                            " samples, because drop_last needs a full batch of all ranks (",
                            options.group.size(), "), found ", samples));
  }
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
  const bool is_last = batch + 1 == end_ && !sampler_.options().drop_last;
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
          .drop_last = options.drop_last};
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
  if (state.epoch < 0 || state.batches < 0 || state.batches > end_) {
    throw BadInput(c10::str("resuming a loader: expected an epoch >= 0 and 0 to ", end_,
                            " batches, found ", state.epoch, " and ", state.batches));
  }
}

namespace {

[[noreturn]] void refuse(const std::string& expected, const std::string& found) {
  throw BadInput("reading a loader state: expected " + expected + ", found " + found);
}

// The fields of one text. take() removes a field, so that the fields left at the end are the
// unknown ones.
class Fields {
 public:
  explicit Fields(std::string_view text) {
    std::istringstream stream{std::string(text)};
    for (std::string word; stream >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) refuse("name=number", "\"" + word + "\"");
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  template <class Number>
  void take(const std::string& name, Number& number) {
    const auto field = values_.find(name);
    if (field == values_.end()) refuse("a field " + name, "none");
    const std::string text = field->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
      refuse(name + " to be a number", "\"" + text + "\"");
    values_.erase(field);
  }

  void take(const std::string& name, bool& flag) {
    int number = 0;
    take(name, number);
    if (number != 0 && number != 1) refuse(name + " to be 0 or 1", std::to_string(number));
    flag = number == 1;
  }

  void check_empty() const {
    if (!values_.empty()) refuse("no other fields", values_.begin()->first);
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace

std::string LoaderState::to_text() const {
  std::ostringstream text;
  text << "epoch=" << epoch << " batches=" << batches << " seed=" << seed << " samples=" << samples
       << " global_batch=" << global_batch << " shuffle=" << shuffle << " drop_last=" << drop_last;
  return text.str();
}

LoaderState LoaderState::from_text(std::string_view text) {
  Fields fields(text);
  LoaderState state;
  fields.take("epoch", state.epoch);
  fields.take("batches", state.batches);
  fields.take("seed", state.seed);
  fields.take("samples", state.samples);
  fields.take("global_batch", state.global_batch);
  fields.take("shuffle", state.shuffle);
  fields.take("drop_last", state.drop_last);
  fields.check_empty();
  return state;
}

}  // namespace lockstep::data
