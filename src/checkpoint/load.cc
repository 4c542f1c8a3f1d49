#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "checkpoint/distributed_checkpoint.h"
#include "checkpoint/file_part.h"
#include "checkpoint/folders.h"
#include "checkpoint/layout_json.h"
#include "checkpoint/model_parts.h"
#include "checkpoint/optimizer_parts.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/rank_tensors.h"
#include "module/tensors.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/schedule.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// A text of a scheduler or a scaler, and its place in layout.json.
struct TextIn {
  const Metadata& texts;
  std::string_view of;

  [[nodiscard]] const std::string& text(const std::string& name) const {
    auto found = texts.find(name);
    check_input(found != texts.end(), "layout.json: has no {}.{}", of, name);
    return found->second;
  }
  [[nodiscard]] std::int64_t count(const std::string& name) const {
    std::optional<std::int64_t> value = parse_integer(text(name));
    check_input(value && *value >= 0,
                "layout.json: {}.{}: expected an integer of at least 0, found '{}'", of, name,
                escaped(text(name), 80));
    return *value;
  }
  [[nodiscard]] double number(const std::string& name, const std::string& word) const {
    std::optional<double> value = number_in(word);
    check_input(value && std::isfinite(*value), "layout.json: {}.{}: expected a number, found '{}'",
                of, name, escaped(word, 80));
    return *value;
  }
};

optim::Scheduler::State scheduler_state(const Metadata& texts) {
  const TextIn in{texts, "scheduler"};
  optim::Scheduler::State state{.step = in.count("step"), .bases = {}};
  std::string bases = in.text("bases");
  for (std::size_t begin = 0; begin < bases.size();) {
    std::size_t end = std::min(bases.find(' ', begin), bases.size());
    state.bases.push_back(in.number("bases", bases.substr(begin, end - begin)));
    begin = end + 1;
  }
  return state;
}

optim::GradScaler::State scaler_state(const Metadata& texts) {
  const TextIn in{texts, "scaler"};
  return {.scale = in.number("scale", in.text("scale")), .good_steps = in.count("good_steps")};
}

void check_is_wanted(std::string_view what, bool is_saved, bool is_given) {
  check_input(!is_saved || is_given,
              "the checkpoint has the state of a {}, but LoadOptions has none to load it into",
              what);
  check_input(is_saved || !is_given, "LoadOptions has a {}, but the checkpoint has no state of one",
              what);
}

// The states that are saved beside model and optimizer. Every rank has them after reading.
struct Beside {
  TrainingState state;
  std::optional<optim::Scheduler::State> scheduler;
  std::optional<optim::GradScaler::State> scaler;
};

Beside fitting(const LayoutJson& json, const LoadOptions& options) {
  check_is_wanted("scheduler", json.scheduler.has_value(), options.scheduler != nullptr);
  check_is_wanted("scaler", json.scaler.has_value(), options.scaler != nullptr);
  check_input(
      !has_file(json, own_file) || options.per_rank != nullptr,
      "the checkpoint has tensors of each rank's own, but LoadOptions::per_rank is not set");
  Beside beside{.state = json.state, .scheduler = {}, .scaler = {}};
  if (json.scheduler) {
    beside.scheduler = scheduler_state(*json.scheduler);
    options.scheduler->check_state(*beside.scheduler);
  }
  if (json.scaler) {
    beside.scaler = scaler_state(*json.scaler);
    optim::GradScaler::check_state(*beside.scaler);
  }
  return beside;
}

// Rank 0's layout.json, and whether this rank sees the same folder or a copy of it.
struct SeenJson {
  LayoutJson json;
  SeenFiles seen = SeenFiles::same;
};

SeenFiles seen_by_other(const fs::path& folder, const std::string& roots) {
  std::error_code error;
  if (!fs::exists(folder / layout_file, error) && !error) return SeenFiles::others;
  const std::string own = read_json_text(folder);
  if (own == roots) return SeenFiles::same;
  (void)parse_json_text(folder, own);  // throws for a damaged copy
  return SeenFiles::others;
}

SeenJson read_json(Group& group, const fs::path& folder) {
  const std::string text = text_of_root(group, [&] { return read_json_text(folder); });
  SeenJson found;
  run_on_all_or_fail(group, [&] {
    found.json = parse_json_text(folder, text);
    if (!group.is_root()) found.seen = seen_by_other(folder, text);
  });
  return found;
}

// The files of a folder that hold tensors. Their headers have the checksums in layout.json.
struct Files {
  PartsReader model, kept, random;
  std::optional<PartsReader> ignored, own;

  [[nodiscard]] std::vector<PartsReader*> all() {
    std::vector<PartsReader*> readers{&model, &kept};
    if (ignored) readers.push_back(&*ignored);
    if (own) readers.push_back(&*own);
    readers.push_back(&random);
    return readers;
  }
};

Files open_files(Group& group, const fs::path& folder, const SeenJson& of) {
  run_on_root_or_fail(group, [&] { check_sealed(of.json, folder); });
  const auto reader = [&](const char* name) { return PartsReader(group, folder / name, of.seen); };
  Files files{reader(model_file), reader(optimizer_file), reader(random_file), {}, {}};
  if (has_file(of.json, ignored_file)) files.ignored.emplace(group, folder / ignored_file, of.seen);
  if (has_file(of.json, own_file)) files.own.emplace(group, folder / own_file, of.seen);
  run_on_root_or_fail(group, [&] {
    for (const PartsReader* opened : files.all()) check_noted(of.json, opened->files());
    check_random_states(files.random, of.json.state.ranks);
  });
  return files;
}

void count(Files& files, LoadCounts* counts) {
  if (counts == nullptr) return;
  for (const PartsReader* reader : files.all()) {
    counts->read += reader->bytes_read();
    counts->verified += reader->bytes_verified();
  }
}

}  // namespace

TrainingState load(const fs::path& folder, Handle& handle, torch::optim::Optimizer& optimizer,
                   const LoadOptions& options) {
  Group group = handle.group();
  const SeenJson found = read_json(group, folder);
  Beside beside;
  run_on_all_or_fail(group, [&] { beside = fitting(found.json, options); });
  const bool same_ranks = beside.state.ranks == group.size();
  Files files = open_files(group, folder, found);
  PartsReader* ignored = files.ignored ? &*files.ignored : nullptr;
  std::vector<Part> state;
  run_on_all_or_fail(group, [&] {
    state = handle.mutable_state_parts();
    if (ignored == nullptr) check_nothing_ignored(state);
  });
  check_model_fits(state, files.model);
  if (ignored != nullptr) check_ignored_fit(state, *ignored);
  OptimizerReading optimizer_reading(optimizer, handle, files.kept);
  if (options.verify)
    for (PartsReader* reader : files.all())
      if (reader != &files.kept) reader->verify();
  std::map<std::string, at::Tensor> own;
  if (files.own && same_ranks) own = read_own(*files.own);
  optimizer_reading.read(options.verify);
  read_model(handle, files.model, ignored);
  if (beside.scheduler) options.scheduler->load_state(*beside.scheduler);
  if (beside.scaler) options.scaler->load_state(*beside.scaler);
  if (options.per_rank != nullptr) *options.per_rank = std::move(own);
  if (same_ranks) load_random_state(files.random);
  count(files, options.counts);
  return beside.state;
}

std::optional<TrainingState> load_latest(const fs::path& out, Handle& handle,
                                         torch::optim::Optimizer& optimizer,
                                         const LoadOptions& options) {
  Group group = handle.group();
  const std::string name = text_of_root(group, [&] {
    const std::optional<fs::path> newest = latest_checkpoint(out);
    return newest ? newest->filename().string() : std::string();
  });
  if (name.empty()) return std::nullopt;
  return load(out / name, handle, optimizer, options);
}

TrainingState read_training_state(Group& group, const fs::path& folder) {
  return read_json(group, folder).json.state;
}

void verify(Group& group, const fs::path& folder) {
  Files files = open_files(group, folder, read_json(group, folder));
  for (PartsReader* reader : files.all()) reader->verify();
}

void load_model(const fs::path& path, Handle& handle, bool verify) {
  Group group = handle.group();
  PartsReader model(group, path);
  std::vector<Part> state;
  run_on_all_or_fail(group, [&] { state = handle.mutable_state_parts(); });
  check_model_fits(state, model);
  if (verify) model.verify();
  read_model(handle, model, nullptr);
}

namespace {

// The tensors of one model in a folder, under its own names.
class DistributedModel {
 public:
  DistributedModel(const std::filesystem::path& folder, const std::string& key)
      : folder_(folder, {.map = true}), shown_(folder.string()), prefix_(key + ".") {}

  // Returns the names in the folder of this rank's parts. Throws BadInput for a tensor that does
  // not match its part.
  [[nodiscard]] std::set<std::string> check_fits(const std::vector<Part>& state) const {
    std::set<std::string> known;
    for (const Part& part : state) {
      if (part.kind == PartKind::ignored) continue;
      for (const std::string& name : names_of(part)) {
        const DistributedFolder::Entry& entry = folder_.entries().at(name);
        check_input(entry.is_tensor && entry.sizes == part.slice.sizes &&
                        entry.dtype == part.tensor.scalar_type(),
                    "{}: '{}': expected a tensor of {} [{}], found {} [{}]", shown_, escaped(name),
                    c10::toString(part.tensor.scalar_type()), listed(part.slice.sizes, ", "),
                    c10::toString(entry.dtype), listed(entry.sizes, ", "));
        known.insert(name);
      }
    }
    return known;
  }

  void check_all_known(const std::set<std::string>& known) const {
    for (const auto& [name, entry] : folder_.entries())
      check_input(!name.starts_with(prefix_) || known.contains(name),
                  "{}: '{}' is a tensor that the model does not have", shown_, escaped(name));
  }

  // The folder has a tied tensor under each of its names, so the first name is enough.
  void fill(const Part& part) const {
    const DistributedFolder::Entry& entry = folder_.entries().at(names_of(part).front());
    const std::vector<layout::Box> boxes = layout::boxes_of(part.slice);
    for (const DistributedFolder::Chunk& chunk : entry.chunks) {
      std::optional<at::Tensor> values;
      for (const layout::Box& box : boxes) {
        const layout::Box common = layout::intersect(box, chunk.box);
        if (common.empty()) continue;
        if (!values) values = folder_.part(entry, chunk);
        layout::Box within = common;
        for (std::size_t dim = 0; dim < within.offsets.size(); ++dim)
          within.offsets[dim] -= chunk.box.offsets[dim];
        view_of(part.tensor, part.slice, common).copy_(modules::box_in_whole(*values, within));
      }
    }
  }

 private:
  [[nodiscard]] std::vector<std::string> names_of(const Part& part) const {
    std::vector<std::string> names{prefix_ + part.name};
    for (const std::string& alias : part.aliases) names.push_back(prefix_ + alias);
    std::erase_if(names, [&](const auto& name) { return !folder_.entries().contains(name); });
    check_input(!names.empty(), "{}: expected a tensor '{}', found none", shown_,
                escaped(prefix_ + part.name));
    return names;
  }

  const DistributedFolder folder_;
  const std::string shown_, prefix_;
};

}  // namespace

void load_distributed_model(const std::filesystem::path& folder, Handle& handle,
                            const std::string& key) {
  Group group = handle.group();
  std::optional<DistributedModel> model;
  std::set<std::string> known;
  run_on_all_or_fail(group, [&] {
    model.emplace(folder, key);
    known = model->check_fits(handle.mutable_state_parts());
  });
  known = names_of_all(group, known);
  run_on_all_or_fail(group, [&] { model->check_all_known(known); });
  const LoadScope scope = handle.loading();
  run_on_all_or_fail(group, [&] {
    for (const Part& part : scope)
      if (part.kind != PartKind::ignored) model->fill(part);
  });
}

}  // namespace lockstep::checkpoint
