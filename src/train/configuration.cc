#include "train/configuration.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/files.h"
#include "sys/plain_file.h"
#include "train/device.h"
#include "train/model.h"
#include "train/option_table.h"
#include "train/strategies.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <system_error>
#include <utility>

namespace lockstep::train {
namespace {

// Names used by command lines, config.toml and the metadata of model files.
constexpr std::array<std::string_view, 9> reserved{
    "config",           "help",     "version",     "task", "format", "step",
    "data_fingerprint", "val_loss", "eval_batches"};

std::string full_path(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  std::filesystem::path full = std::filesystem::absolute(path, error);
  return error ? path : full.lexically_normal().string();
}

std::string text_of(const toml::node& node, std::string_view place, std::string_view name) {
  if (auto text = node.value_exact<std::string>()) return *text;
  if (auto number = node.value_exact<std::int64_t>()) return formatted("{}", *number);
  if (auto number = node.value_exact<double>()) return formatted("{}", *number);
  if (auto flag = node.value_exact<bool>()) return formatted("{}", *flag);
  throw BadInput(
      formatted("{}: {}: expected a string, a number, true or false", place, escaped(name)));
}

void apply_entry(Configuration& configuration, const ConfigEntry& entry) {
  const Settings::Entry& setting = configuration.settings().entry(entry.name);
  const bool wants_text = setting.is_text();
  check_input(wants_text == entry.is_text, "{}: expected {}, found {}", entry.name,
              wants_text ? "a string in quotes" : "a value without quotes", entry.text);
  configuration.settings().set(entry.name, entry.text);
  configuration.options.places[entry.name] = entry.place;
}

std::string kept_text(const Settings::Entry& entry) {
  std::string text = Settings::text_of(entry);
  return entry.is_path ? full_path(text) : text;
}

std::string text_in_file(const Settings::Entry& entry) {
  return entry.variable.file_text ? entry.variable.file_text() : kept_text(entry);
}

// Writes a string of TOML. toml++ would write a text with a line end between triple quotes, without
// escapes and even if the text has quotes that end the string.
void write_text(std::ostream& out, const std::string& text) {
  const bool is_one_line = text.find('\n') == std::string::npos;
  out << toml::toml_formatter(toml::value<std::string>(text),
                              is_one_line ? toml::toml_formatter::default_flags
                                          : toml::format_flags::allow_unicode_strings);
}

toml::table parse_file(const std::filesystem::path& path) {
  constexpr std::uint64_t most_bytes = 1 << 20;
  try {
    return toml::parse(sys::read_plain_file(path, most_bytes), path.string());
  } catch (const SystemError& error) {
    throw BadInput(error.what());
  } catch (const toml::parse_error& error) {
    auto line = error.source().begin.line;
    std::string what = escaped(error.description(), 1000);
    throw BadInput(line > 0 ? formatted("{} line {}: {}", path.string(), line, what)
                            : formatted("{}: {}", path.string(), what));
  }
}

void check_context(const Options& options, const Task& task, const MeshLayout& layout) {
  if (!layout.find(context_axis)) return;
  const std::int64_t heads = task.parallel_plan().heads;
  check_input(heads > 0,
              "--mesh {}: the task {} has no sequences to cut over cp (Task::parallel_plan())",
              mesh_text(options.mesh), task.name());
  const int ranks = layout.size(context_axis) * layout.size(tensor_axis);
  check_input(options.context_method == ContextMethod::ring || heads % ranks == 0,
              "--context-method ulysses on --mesh {}: expected a number of key heads divisible by "
              "cp x tp, {}, found {}; ring takes any",
              mesh_text(options.mesh), ranks, heads);
}

// Checks the numbers of heads. A plan may have a pattern that matches nothing in the model:
// parallelize() reports that.
void check_heads(const Options& options, const Task& task, const MeshLayout& layout) {
  const int ranks = layout.size(tensor_axis);
  for (const auto& [pattern, style] : task.parallel_plan().tensor)
    check_input(style.head_count() % ranks == 0,
                "--mesh {}: expected a number of heads divisible by tp, {}, found {} ({})",
                mesh_text(options.mesh), ranks, style.head_count(), pattern);
}

void check_experts(const Options& options, const Task& task, const MeshLayout& layout) {
  const std::int64_t experts = task.parallel_plan().experts;
  const bool has_axis = layout.find(experts_axis).has_value();
  check_input(!has_axis || experts > 0,
              "--mesh {}: the task {} has no experts for ep (Task::parallel_plan())",
              mesh_text(options.mesh), task.name());
  check_input(!has_axis || experts % layout.size(experts_axis) == 0,
              "--mesh {}: expected a number of experts divisible by ep, {}, found {}",
              mesh_text(options.mesh), layout.size(experts_axis), experts);
}

void check_axes(const Options& options, const Task& task, const MeshLayout& layout) {
  const std::string mesh = mesh_text(options.mesh);
  check_experts(options, task, layout);
  check_input(!layout.find(tensor_axis) || !task.parallel_plan().tensor.empty(),
              "--mesh {}: the task {} has no plan for tensor parallelism (Task::parallel_plan()): "
              "expected --mesh without tp",
              mesh, task.name());
  check_heads(options, task, layout);
  check_context(options, task, layout);
  for (const auto& [is_given, name] : {std::pair(options.hook.is_given(), "--hook"),
                                       std::pair(options.sync_batch_norm, "--sync-batch-norm"),
                                       std::pair(options.uneven, "--uneven")})
    check_input(!is_given || !is_model_parallel(layout),
                "{}: expected ranks that have the whole model, without pp, tp, cp and ep, found "
                "--mesh {}",
                name, mesh);
  check_input(
      options.activation_checkpoint_every == 0 || !task.parallel_plan().blocks.empty(),
      "--activation-checkpoint-every {}: the task {} names no blocks (Task::parallel_plan())",
      options.activation_checkpoint_every, task.name());
}

void check_batch(const Options& options, std::int64_t dp_ranks) {
  const std::int64_t parts = options.accumulate * dp_ranks;
  if (options.batch % parts == 0) return;
  const std::int64_t below = options.batch / parts * parts, above = below + parts;
  throw BadInput(
      formatted("--batch {} must be divisible by {} ({} x {}); try --batch {}", options.batch,
                parts, counted(dp_ranks, options.strategy == StrategyKind::ps ? "worker" : "rank"),
                counted(options.accumulate, "micro-batch", "es"),
                below > 0 ? formatted("{} or {}", below, above) : formatted("{}", above)));
}

void check_start_options(const Options& options) {
  check_input(!options.out.empty(), "--out is missing: name a folder for the run");
  const bool goes_on = options.resume || options.resume_auto || !options.resume_from.empty();
  check_input(!options.overwrite || !goes_on, "give --resume or --overwrite, not both{}",
              place_of(options, "overwrite"));
  check_input(options.grace >= Duration::zero(), "--grace {}: expected at least 0s",
              format_duration(options.grace));
}

// Prefix of names of a description, in maps that also have other entries.
constexpr std::string_view description_prefix = "task.";
// Changes of these entries are not reported: the run's folder, and a number that the launcher
// decides.
constexpr std::array<std::string_view, 2> places{"out", "ranks"};

bool is_of_model(const Settings::Entry& entry) {
  return entry.scope == Scope::model || entry.scope == Scope::shape;
}

}  // namespace

// The settings are bound to the defaults first, so that they can tell which options are given.
Configuration::Configuration(Task& task, const Options& given)
    : task_(task), settings_(task.name()) {
  settings_.begin_group("Model and data");
  task_.declare(settings_);
  for (const Settings::Entry& entry : settings_.entries()) {
    check(!std::ranges::count(reserved, entry.name),
          "Task::declare: '{}' is a name of the trainer's", entry.name);
    if (entry.is_path) own_paths_.push_back(entry.name);
  }
  declare_options(settings_, options, task_);
  options = given;
}

checkpoint::Metadata Configuration::kept() const {
  checkpoint::Metadata texts{{"task", task_name()}};
  for (const Settings::Entry& entry : settings_.entries())
    if (entry.scope != Scope::start) texts[entry.name] = kept_text(entry);
  return texts;
}

void Configuration::check_texts() const {
  for (const Settings::Entry& entry : settings_.entries()) {
    const std::string text = Settings::text_of(entry);
    check_input(text.find('\0') == std::string::npos,
                "--{}: expected a text without NUL, which would end a path there, found '{}'{}",
                entry.name, escaped(text), place_of(options, entry.name));
  }
  for (const auto& [name, text] : kept())
    check_input(is_utf8(text),
                "--{}: expected UTF-8, because config.toml and checkpoints keep it, found '{}'{}",
                name, escaped(text), place_of(options, name));
}

void Configuration::check_description() const {
  for (const auto& [name, text] : task_.description())
    check(is_utf8(name) && is_utf8(text),
          "Task::description: expected UTF-8, because checkpoints keep it, found {} '{}'",
          escaped(name), escaped(text));
}

std::string Configuration::data_text() const {
  std::string text;
  for (const std::string& name : own_paths_)
    if (std::string path = settings_.text(name); !path.empty())
      text += formatted("{}{}", text.empty() ? "" : ", ", path);
  return text.empty() ? "the task's data" : text;
}

std::string Configuration::place_of_data() const {
  for (const std::string& name : own_paths_)
    if (options.places.contains(name) && !settings_.text(name).empty())
      return place_of(options, name);
  return {};
}

void check_run(Configuration& configuration, int ranks) {
  const Options& options = configuration.options;
  const Task& task = configuration.task();
  configuration.settings().check_needs();
  check_strategy(options, ranks);
  check_device(options);
  // Autocast would compute the router in 16 bits and the experts in 32.
  check_input(task.name() != "moe" || !autocast_dtype(options),
              "moe with --precision needs --shard: autocast does not reach the experts");
  // Servers are not on a mesh axis.
  configuration.layout = layout_of(options, ranks - server_count(options));
  const MeshLayout& layout = configuration.layout;
  if (!options.elastic) check_batch(options, dp_ranks_in(layout));
  check_input((options.steps > 0) != (options.epochs > 0),
              "give --steps or --epochs: found {} and {}", options.steps, options.epochs);
  const bool ends_at_min_lr =
      options.schedule == ScheduleKind::cosine || options.schedule == ScheduleKind::wsd;
  check_input(!ends_at_min_lr || options.min_lr <= options.lr, "--min-lr {} is above --lr {}",
              options.min_lr, options.lr);
  task.check();
  check_axes(options, task, layout);
  if (task.parallel_plan().experts > 0) check_mixtures(options, task, layout);
  check_start_options(options);
  const std::filesystem::path trace(options.trace);
  check_input(
      trace.empty() || (trace.has_filename() && !sys::is_folder(trace) &&
                        sys::is_folder(trace.has_parent_path() ? trace.parent_path() : ".")),
      "--trace {}: expected a file in a folder that is there", escaped(options.trace));
  const std::string& offload = options.sharding.offload;
  check_input(offload.empty() || sys::is_folder(offload),
              "--offload {}: expected a folder that is there", escaped(offload));
}

std::vector<ConfigEntry> read_config(const std::filesystem::path& path) {
  std::vector<std::pair<toml::source_index, ConfigEntry>> found;
  for (const auto& [key, node] : parse_file(path)) {
    auto line = node.source().begin.line;
    std::string place = formatted("{} line {}", path.string(), line);
    std::string name(key.str());
    found.push_back({line, {name, text_of(node, place, name), place, node.is_string()}});
  }
  std::ranges::stable_sort(found, {}, [](const auto& item) { return item.first; });
  check_input(!found.empty(), "{}: expected options such as 'steps = 100', found none",
              path.string());
  std::vector<ConfigEntry> entries;
  for (auto& item : found) entries.push_back(std::move(item.second));
  return entries;
}

void apply_config(Configuration& configuration, const std::vector<ConfigEntry>& entries) {
  auto has = [&](std::string_view name) {
    return std::ranges::find(entries, name, &ConfigEntry::name) != entries.end();
  };
  if (has("steps") && has("epochs"))
    throw BadInput(formatted("{}: give steps or epochs, not both", entries[0].place));
  for (const ConfigEntry& entry : entries) {
    if (entry.name == "task") {
      check_input(entry.text == configuration.task_name(),
                  "{}: the file is for task '{}', the command says '{}'", entry.place,
                  escaped(entry.text), configuration.task_name());
      continue;
    }
    try {
      apply_entry(configuration, entry);
    } catch (const BadInput& error) {
      throw BadInput(formatted("{}: {}", entry.place, escaped(error.what(), 1000)));
    }
  }
}

void write_config(const std::filesystem::path& path, const Configuration& configuration) {
  std::ostringstream text;
  text << "task = ";
  write_text(text, configuration.task_name());
  text << "\n";
  for (const Settings::Entry& entry : configuration.settings().entries()) {
    if (entry.scope == Scope::start || !Settings::is_given(entry)) continue;
    std::string value = text_in_file(entry);
    text << entry.name << " = ";
    if (entry.is_text())
      write_text(text, value);
    else
      text << value;
    text << "\n";
  }
  sys::AtomicFile::write(path, text.str());
}

void check_same_model(const Configuration& configuration, const checkpoint::TrainingState& state) {
  auto compare = [&](const std::string& name, std::string_view after) {
    auto before = state.config.find(name);
    check_input(
        before == state.config.end() || before->second == after,
        "--resume: {} is {}, the checkpoint's is {}: a run goes on with the model that it has",
        name, after, before == state.config.end() ? "" : escaped(before->second));
  };
  compare("task", configuration.task_name());
  for (const Settings::Entry& entry : configuration.settings().entries())
    if (entry.scope == Scope::shape) compare(entry.name, Settings::text_of(entry));
}

std::string changes_since(const Configuration& configuration, int ranks,
                          const checkpoint::TrainingState& state) {
  std::string changes;
  auto add = [&](std::string_view name, std::string_view before, std::string_view after) {
    auto shown = [](std::string_view value) { return value.empty() ? "none" : escaped(value); };
    if (before == after) return;
    changes +=
        formatted("{}{} {} -> {}", changes.empty() ? "" : ", ", name, shown(before), shown(after));
  };
  for (const auto& [name, value] : configuration.kept()) {
    auto before = state.config.find(name);
    if (before != state.config.end() && !std::ranges::count(places, name))
      add(name, before->second, value);
  }
  add("ranks", std::to_string(state.ranks), std::to_string(ranks));
  return changes;
}

checkpoint::Metadata model_description(const Configuration& configuration, std::int64_t step) {
  checkpoint::Metadata entries{
      {"format", "pt"}, {"task", configuration.task_name()}, {"step", formatted("{}", step)}};
  for (const Settings::Entry& entry : configuration.settings().entries())
    if (is_of_model(entry)) entries[entry.name] = Settings::text_of(entry);
  entries.merge(configuration.task().description());
  return entries;
}

const std::string& described(const checkpoint::Metadata& metadata, const std::string& name) {
  auto found = metadata.find(name);
  check_input(found != metadata.end(), "metadata: expected an entry '{}', found none", name);
  return found->second;
}

void in_metadata(const std::function<void()>& read) {
  try {
    read();
  } catch (const BadInput& error) {
    std::string what = error.what();
    throw BadInput(what.starts_with("metadata: ") ? what : "metadata: " + what);
  }
}

void restore_model(Configuration& configuration, const checkpoint::Metadata& metadata) {
  in_metadata([&] {
    for (const Settings::Entry& entry : configuration.settings().entries())
      if (is_of_model(entry))
        configuration.settings().set(entry.name, described(metadata, entry.name));
    configuration.task().restore(metadata);
  });
}

void keep_description(checkpoint::Metadata& progress, const Task& task) {
  for (const auto& [name, text] : task.description())
    progress[std::string(description_prefix) + name] = text;
}

checkpoint::Metadata kept_description(const checkpoint::Metadata& progress) {
  checkpoint::Metadata description;
  for (const auto& [name, text] : progress)
    if (name.starts_with(description_prefix))
      description[name.substr(description_prefix.size())] = text;
  return description;
}

}  // namespace lockstep::train
