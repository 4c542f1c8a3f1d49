#include <lockstep/checkpoint/training_state.h>

#include "base/check.h"
#include "base/scope_exit.h"
#include "base/visible.h"
#include "sys/bounded_json.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <span>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr int format_version = 1;
constexpr std::string_view folder_prefix = "step-";

// The step in a checkpoint folder's name, or -1 for any other name.
std::int64_t step_of(const fs::path& folder) {
  std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  if (!name.starts_with(folder_prefix)) return -1;
  std::string digits = name.substr(folder_prefix.size());
  bool good = digits.size() >= 8 && digits.size() <= 18 &&
              std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c); });
  return good ? std::stoll(digits) : -1;
}

NamedTensors by_rank(const std::vector<at::Tensor>& states) {
  NamedTensors named;
  for (std::size_t rank = 0; rank < states.size(); ++rank)
    named[formatted("rank{}", rank)] = states[rank];
  return named;
}

std::string json_of(const TrainingState& state) {
  nlohmann::ordered_json json{{"format", format_version},   {"step", state.step},
                              {"epoch", state.epoch},       {"ranks", state.random.size()},
                              {"progress", state.progress}, {"config", state.config}};
  return json.dump(2) + "\n";
}

void write_files(const fs::path& folder, const TrainingState& state) {
  write_safetensors(folder / "model.safetensors", state.model, state.description);
  write_safetensors(folder / "optimizer.safetensors", state.optimizer);
  write_safetensors(folder / "random.safetensors", by_rank(state.random));
  sys::AtomicFile::write(folder / "training.json", json_of(state));
}

void remove_all_but(const fs::path& out, std::int64_t keep) {
  std::vector<fs::path> folders = list_checkpoints(out);
  if (keep == 0 || static_cast<std::int64_t>(folders.size()) <= keep) return;
  for (const fs::path& folder : std::span(folders).first(folders.size() - keep)) {
    std::error_code ignored;  // an old checkpoint that stays harms nobody
    fs::remove_all(folder, ignored);
  }
}

// The values of training.json. Each must have its own type: the JSON library would make an integer
// of 1.5, and wrap what is too large.
class Fields {
 public:
  explicit Fields(const fs::path& path) : path_(path) {
    constexpr std::uint64_t most_bytes = 64 << 20;
    const std::string text = sys::read_plain_file(path, most_bytes);
    try {
      json_ = sys::parse_json(text);
    } catch (const BadInput& error) {
      fail(error.what());
    }
    if (!json_.is_object()) fail("expected an object, found " + shown(json_));
  }

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const nlohmann::json& value = at(key);
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
      fail(formatted("{}: expected an integer from {} to {}, found {}", key, least, most,
                     shown(value)));
    return value.get<std::int64_t>();
  }

  [[nodiscard]] Metadata texts(const char* key) const {
    Metadata texts;
    const nlohmann::json& object = at(key);
    if (!object.is_object())
      fail(formatted("{}: expected an object of texts, found {}", key, shown(object)));
    for (const auto& [name, value] : object.items()) {
      if (!value.is_string())
        fail(formatted("{}.{}: expected a text, found {}", key, visible(name), shown(value)));
      texts[name] = value.get<std::string>();
    }
    return texts;
  }

  void check_format() const {
    const nlohmann::json& found = at("format");
    if (!found.is_number_integer() || found != format_version)
      fail(formatted("expected format {}, found {}", format_version, shown(found)));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw BadInput(formatted("{}: {}", path_.string(), what));
  }

 private:
  [[nodiscard]] const nlohmann::json& at(const char* key) const {
    auto found = json_.find(key);
    if (found == json_.end()) fail(formatted("has no {}", key));
    return *found;
  }

  static std::string shown(const nlohmann::json& value) {
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";
    return visible(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 80);
  }

  const fs::path path_;
  nlohmann::json json_;
};

void read_json(const fs::path& folder, TrainingState& state, std::size_t& ranks) {
  constexpr std::int64_t most_steps = 999'999'999'999'999'999;  // as many digits as names may have
  constexpr std::int64_t most_ranks = 1 << 20;
  const Fields fields(folder / "training.json");
  fields.check_format();
  state.step = fields.integer("step", 0, most_steps);
  if (std::int64_t named = step_of(folder); named >= 0 && named != state.step)
    fields.fail(
        formatted("step: expected {}, as the folder is called, found {}", named, state.step));
  state.epoch = fields.integer("epoch", 0, most_steps);
  state.progress = fields.texts("progress");
  state.config = fields.texts("config");
  ranks = static_cast<std::size_t>(fields.integer("ranks", 0, most_ranks));
}

// What at::Generator::get_state() gives. Whether a generator takes it is for its owner to try.
void check_random_state(const fs::path& file, const std::string& name, const at::Tensor& state) {
  check_input(state.scalar_type() == at::kByte && state.dim() == 1,
              "{}: {}: expected a generator's state as bytes, U8 [n], found {} [{}]", file.string(),
              name, c10::toString(state.scalar_type()), listed(state.sizes(), ", "));
}

std::vector<at::Tensor> read_random_states(const fs::path& file, std::size_t ranks) {
  NamedTensors named = read_safetensors(file).tensors;
  check_input(named.size() == ranks,
              "{}: expected {} tensors, one for each rank that training.json counts, found {}",
              file.string(), ranks, named.size());
  std::vector<at::Tensor> states;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::string name = formatted("rank{}", rank);
    auto found = named.find(name);
    check_input(found != named.end(), "{}: has no {}", file.string(), name);
    check_random_state(file, name, found->second);
    states.push_back(found->second);
  }
  return states;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return formatted("{}{:08}", folder_prefix, step); }

void save_training_state(const fs::path& out, const TrainingState& state, std::int64_t keep) {
  fs::path folder = out / checkpoint_name(state.step);
  fs::path partial = out / formatted(".{}.partial", checkpoint_name(state.step));
  if (fs::exists(folder))
    throw BadInput(folder.string() + ": is there already, and a checkpoint is never overwritten");
  std::error_code error;
  fs::remove_all(partial, error);  // what a killed run left
  if (!fs::create_directory(partial, error))
    throw SystemError("cannot make folder " + partial.string(), error.value());
  ScopeExit remove_partial([&] {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
  });
  write_files(partial, state);
  sys::rename_durably(partial, folder);
  remove_partial.cancel();
  remove_all_but(out, keep);
}

std::vector<fs::path> list_checkpoints(const fs::path& out) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(out, error))
    if (step_of(entry.path()) >= 0) folders.push_back(entry.path());
  std::ranges::sort(folders, {}, step_of);
  return folders;
}

std::optional<fs::path> latest_checkpoint(const fs::path& out) {
  std::vector<fs::path> folders = list_checkpoints(out);
  return folders.empty() ? std::nullopt : std::optional(folders.back());
}

TrainingState load_training_state(const fs::path& folder) {
  TrainingState state;
  std::size_t ranks = 0;
  read_json(folder, state, ranks);
  Safetensors model = read_safetensors(folder / "model.safetensors");
  state.model = std::move(model.tensors);
  state.description = std::move(model.metadata);
  state.optimizer = read_safetensors(folder / "optimizer.safetensors").tensors;
  state.random = read_random_states(folder / "random.safetensors", ranks);
  return state;
}

}  // namespace lockstep::checkpoint
