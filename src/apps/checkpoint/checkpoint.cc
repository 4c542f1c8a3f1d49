// lockstep-checkpoint: `lockstep checkpoint ls | show | verify | diff | reshard | convert`: shows
// the content of checkpoints, verifies and compares them, and rewrites a checkpoint with another
// number of files or in the format of another program.
#include "apps/checkpoint/source.h"
#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/content.h"
#include "checkpoint/folders.h"
#include "checkpoint/layout_json.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shards.h"
#include "sys/failure_text.h"
#include "sys/program.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/checkpoint/training_state.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::apps;
namespace fs = std::filesystem;

struct Difference {
  std::vector<std::string> lines;  // one per tensor that differs, or that only one side has
  std::size_t tensors = 0;         // number of tensors on either side
};

using checkpoint::PartsReader;
using checkpoint::TensorEntry;

// Bytes that are compared at a time, so that a few megabytes suffice, even as doubles.
constexpr std::uint64_t compared_bytes = std::uint64_t{1} << 20;

// Differences of the elements compared so far.
struct Found {
  std::int64_t different = 0;
  bool other_bits = false;
  double most = 0;  // for floating-point dtypes
  std::uint64_t most_of_integers = 0;
};

// Maps signed values to unsigned values in the same order.
std::uint64_t as_unsigned(const at::Tensor& values, std::int64_t i) {
  if (values.scalar_type() == at::kUInt64) return values.const_data_ptr<std::uint64_t>()[i];
  return static_cast<std::uint64_t>(values.const_data_ptr<std::int64_t>()[i]) ^
         (std::uint64_t{1} << 63);
}

void add_integers(const at::Tensor& one, const at::Tensor& other, Found& found) {
  const bool is_largest = one.scalar_type() == at::kUInt64;
  const at::Tensor a = is_largest ? one : one.to(at::kLong);
  const at::Tensor b = is_largest ? other : other.to(at::kLong);
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const std::uint64_t x = as_unsigned(a, i), y = as_unsigned(b, i);
    if (x == y) continue;
    ++found.different;
    found.most_of_integers = std::max(found.most_of_integers, x > y ? x - y : y - x);
  }
}

void add_numbers(const at::Tensor& one, const at::Tensor& other, Found& found) {
  const at::ScalarType wide = one.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = one.to(wide), b = other.to(wide);
  const at::Tensor both_nan = a.isnan().logical_and(b.isnan());
  const at::Tensor differs = a.ne(b).logical_and(both_nan.logical_not());
  const auto count = differs.sum().item<std::int64_t>();
  if (count == 0) return;
  found.different += count;
  const double most = (a - b).abs().masked_select(differs).max().item<double>();
  if (!std::isnan(found.most) && !(most <= found.most)) found.most = most;  // NaN is the most
}

at::Tensor some_of(PartsReader& file, const TensorEntry& entry, std::uint64_t offset,
                   std::uint64_t bytes) {
  const auto element = static_cast<std::uint64_t>(c10::elementSize(entry.dtype));
  at::Tensor values = at::empty({static_cast<std::int64_t>(bytes / element)}, entry.dtype);
  file.read_bytes(entry, offset,
                  {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

// Returns an empty text if all bits are equal.
std::string difference_of(PartsReader& one, const TensorEntry& a, PartsReader& other,
                          const TensorEntry& b) {
  const std::uint64_t bytes = a.end - a.begin;
  const bool is_integer = c10::isIntegralType(a.dtype, /*includeBool=*/true);
  Found found;
  for (std::uint64_t offset = 0; offset < bytes; offset += compared_bytes) {
    const std::uint64_t now = std::min(compared_bytes, bytes - offset);
    const at::Tensor x = some_of(one, a, offset, now), y = some_of(other, b, offset, now);
    if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), now) == 0) continue;
    found.other_bits = true;
    if (is_integer)
      add_integers(x, y, found);
    else
      add_numbers(x, y, found);
  }
  if (!found.other_bits) return {};
  if (found.different == 0) return "equal values with different bits";
  const auto elements = static_cast<std::int64_t>(bytes / c10::elementSize(a.dtype));
  return formatted(
      "{} of {} elements differ, by at most {}", found.different, elements,
      is_integer ? formatted("{}", found.most_of_integers) : formatted("{}", found.most));
}

void compare(PartsReader& one, PartsReader& other, const std::string& shown_file,
             Difference& found) {
  std::set<std::string> names;
  for (const PartsReader* file : {&one, &other})
    for (const TensorEntry& entry : file->entries()) names.insert(entry.name);
  found.tensors += names.size();
  for (const std::string& name : names) {
    const TensorEntry *a = one.find(name), *b = other.find(name);
    std::string text;
    if (a == nullptr || b == nullptr) {
      text = formatted("only in {}", (a != nullptr ? one : other).path().string());
    } else if (kind_of(*a) != kind_of(*b)) {
      text = formatted("{} and {}", kind_of(*a), kind_of(*b));
    } else {
      text = difference_of(one, *a, other, *b);
    }
    if (!text.empty())
      found.lines.push_back(formatted("{}{}: {}", shown_file, escaped(name), text));
  }
}

// Compares two checkpoints or files, reading some megabytes at a time. BadInput and SystemError
// name the file that cannot be read.
Difference difference_of(const fs::path& one, const fs::path& other) {
  check_input(fs::is_directory(one) == fs::is_directory(other),
              "diff: expected two folders or two files, found one of each: {} and {}", one.string(),
              other.string());
  Difference found;
  Group alone;
  if (!fs::is_directory(one)) {
    PartsReader a(alone, tensor_files_of(one).front()), b(alone, tensor_files_of(other).front());
    compare(a, b, "", found);
    return found;
  }
  for (const char* name : checkpoint::tensor_files) {
    const bool in_one = checkpoint::has_tensors(one / name);
    const bool in_other = checkpoint::has_tensors(other / name);
    if (in_one != in_other)
      found.lines.push_back(formatted("{}: only in {}", name, (in_one ? one : other).string()));
    if (!in_one || !in_other) continue;
    PartsReader a(alone, one / name), b(alone, other / name);
    compare(a, b, formatted("{}: ", name), found);
  }
  return found;
}

constexpr const char* command = "lockstep checkpoint";
constexpr const char* about =
    "  ls RUN           The checkpoints of a run's folder, oldest first.\n"
    "  show PATH        What a checkpoint says of its run, and its tensors.\n"
    "  verify PATH...   Reads all bytes and compares each tensor with its checksum, which a file "
    "of\n"
    "                   other programs need not have: then nothing says whether it is whole.\n"
    "  diff PATH PATH   The tensors in which two checkpoints, or two files, differ.\n"
    "  reshard PATH NEW Writes the checkpoint once more as the folder NEW, its tensors in --shards "
    "N\n"
    "                   files; without --shards in files of 4 GiB.\n"
    "  convert FROM TO  Writes what FROM holds in the form that TO's name says.\n"
    "\n"
    "PATH is the folder of a checkpoint, a file of tensors (safetensors) or an index of shards, or "
    "a\n"
    "run's folder: its newest checkpoint, and for verify all of them. FROM, and show's PATH, may "
    "also\n"
    "be a file of torch.save(), a folder that torch.distributed.checkpoint wrote, and a folder of\n"
    "safetensors as model hubs have it. TO is FILE.safetensors, FILE.pt, a checkpoint\n"
    "RUN/step-00000100, or a folder: safetensors with an index, and config.json of a GPT-2 or "
    "Llama.\n"
    "\n"
    "Exit code 0; 1 when something is damaged, has no checksums, cannot be read or differs; 2 for "
    "a\n"
    "mistake in the command.\n";

void complain(const std::string& what) { print_to(stderr, "{}: {}\n", command, what); }

std::string shown_bytes(std::uint64_t bytes) {
  return format_bytes(static_cast<std::int64_t>(bytes));
}

// Calls `act` for each path, and continues after an unreadable one; returns true if all could be
// read. A path that has disappeared is not a failure, because a running training removes its older
// checkpoints.
bool for_each(const std::vector<fs::path>& paths, const std::function<void(const fs::path&)>& act) {
  bool all = true;
  for (const fs::path& path : paths) {
    try {
      act(path);
    } catch (const std::exception& failure) {
      if (checkpoint::step_of(path) >= 0 && paths.size() > 1 && !fs::exists(path)) continue;
      complain(sys::failure_text(failure));
      all = false;
    }
  }
  return all;
}

int list(const fs::path& run) {
  return for_each(
             all_at(run),
             [](const fs::path& folder) {
               const checkpoint::TrainingState state = checkpoint::read_training_state(folder);
               sys::write_out(formatted("{}  {}  ranks={} epoch={}\n", folder.filename().string(),
                                        shown_bytes(bytes_of(folder)), state.ranks, state.epoch));
             })
             ? 0
             : 1;
}

std::string entries_of(std::string_view group, const checkpoint::Metadata& entries) {
  constexpr std::size_t most_letters = 200;
  std::string text;
  for (const auto& [name, value] : entries)
    text += formatted("{}.{} = {}\n", group, escaped(name), escaped(value, most_letters));
  return text;
}

std::string description_of(const fs::path& folder) {
  const checkpoint::LayoutJson layout =
      checkpoint::parse_json_text(folder, checkpoint::read_json_text(folder));
  const checkpoint::TrainingState& state = layout.state;
  std::string text = formatted("{}: {}\nstep = {}\nepoch = {}\nranks = {}\n", folder.string(),
                               shown_bytes(bytes_of(folder)), state.step, state.epoch, state.ranks);
  for (const MeshAxis& axis : layout.mesh)
    text += formatted("mesh.{} = {}\n", escaped(axis.name), axis.size);
  for (const auto& [name, number] : state.numbers)
    text += formatted("numbers.{} = {}\n", escaped(name), number);
  text += entries_of("progress", state.progress) + entries_of("config", state.config);
  for (const auto& [name, parts] : layout.parts)
    text += formatted("parts.{} = {}\n", escaped(name), escaped(listed(parts, "; "), 200));
  return text;
}

std::string tensors_of(const fs::path& path) {
  Group alone;
  const checkpoint::PartsReader file(alone, path);
  const std::vector<fs::path> shards = file.files();
  std::uint64_t bytes = 0;
  for (const fs::path& shard : shards) bytes += bytes_of(shard);
  std::string text = formatted("{}: {}, {}{}\n", file.path().string(), shown_bytes(bytes),
                               counted(static_cast<std::int64_t>(file.entries().size()), "tensor"),
                               shards.size() > 1 ? formatted(" in {} shards", shards.size()) : "");
  for (const fs::path& shard : shards)
    if (shards.size() > 1)
      text += formatted("  {}: {}\n", shard.filename().string(), shown_bytes(bytes_of(shard)));
  text += entries_of("metadata", checkpoint::without_checksums(file.metadata()));
  for (const checkpoint::TensorEntry& entry : file.entries())
    text += formatted("  {} {} {}\n", escaped(entry.name), kind_of(entry),
                      shown_bytes(entry.end - entry.begin));
  return text;
}

std::string description_of_others(const fs::path& path) {
  const Source source = source_at(path);
  std::string text = formatted("{}: {}, {} of the model\n", path.string(), source.kind,
                               counted(static_cast<std::int64_t>(source.model.size()), "tensor"));
  text += entries_of("metadata", source.metadata);
  for (const auto& [name, tensor] : source.model)
    text += formatted("  {} {} [{}] {}\n", escaped(name), c10::toString(tensor.dtype),
                      listed(tensor.sizes, ", "), shown_bytes(tensor.bytes()));
  return text;
}

int show(const fs::path& path) {
  if (is_of_others(path)) {
    sys::write_out(description_of_others(path));
    return 0;
  }
  const fs::path shown = one_at(path);
  if (fs::is_directory(shown)) sys::write_out(description_of(shown));
  for (const fs::path& file : tensor_files_of(shown)) sys::write_out(tensors_of(file));
  return 0;
}

void check_has_checksums(const checkpoint::PartsReader& file) {
  const std::vector<checkpoint::TensorEntry>& entries = file.entries();
  const auto missing = std::ranges::count_if(
      entries, [&](const checkpoint::TensorEntry& entry) { return !file.has_checksum(entry); });
  check_input(missing == 0,
              "{}: expected a checksum for each tensor, found none for {} of {} tensors, which "
              "therefore cannot be verified",
              file.path().string(), missing, entries.size());
}

void verify_file(const fs::path& path) {
  Group alone;
  checkpoint::PartsReader file(alone, tensor_files_of(path).front());
  file.verify();
  check_has_checksums(file);
}

int verify(const std::vector<std::string>& words) {
  bool all = true;
  for (const std::string& word : words) {
    std::vector<fs::path> paths;
    all = for_each({word}, [&](const fs::path& path) { paths = all_at(path); }) && all;
    all = for_each(paths,
                   [](const fs::path& path) {
                     if (fs::is_directory(path)) {
                       checkpoint::verify(path);
                     } else {
                       verify_file(path);
                     }
                     sys::write_out(formatted("{}: whole\n", path.string()));
                   }) &&
          all;
  }
  return all ? 0 : 1;
}

int diff(const fs::path& one, const fs::path& other) {
  const Difference found = difference_of(one_at(one), one_at(other));
  for (const std::string& line : found.lines) sys::write_out(line + "\n");
  if (found.lines.empty())
    sys::write_out(
        formatted("the same {}\n", counted(static_cast<std::int64_t>(found.tensors), "tensor")));
  return found.lines.empty() ? 0 : 1;
}

int reshard(const fs::path& from, const fs::path& to, int files) {
  const fs::path whole = one_at(from);
  check_input(is_checkpoint(whole),
              "reshard {}: expected a checkpoint or a run's folder, found a file", whole.string());
  checkpoint::reshard(whole, to, {.files = files});
  sys::write_out(formatted("{}: {}\n", to.string(), shown_bytes(bytes_of(to))));
  return 0;
}

// Options that belong to a single command.
struct Chosen {
  int shards = 0;
  ConvertOptions convert = {};
};

int run(const std::vector<std::string>& words, const Chosen& chosen) {
  const std::vector<std::string_view> known{"ls", "show", "verify", "diff", "reshard", "convert"};
  if (words.empty()) throw UsageError(formatted("name a command: {}", listed(known, " ")));
  const std::string& name = words.front();
  if (std::ranges::find(known, name) == known.end())
    throw UsageError(unknown_name("command", name, known));
  const std::size_t paths = words.size() - 1;
  if (name == "verify") {
    if (paths == 0) throw UsageError("verify: expected at least one path, found none");
    return verify({words.begin() + 1, words.end()});
  }
  const bool takes_two = name == "diff" || name == "reshard" || name == "convert";
  const std::size_t wanted = takes_two ? 2 : 1;
  if (paths != wanted)
    throw UsageError(formatted("{}: expected {}, found {}", name,
                               wanted == 1 ? "one path" : "two paths", paths));
  if (chosen.shards != 0 && name != "reshard")
    throw UsageError(formatted("--shards is an option of reshard, not of {}", name));
  if (name == "reshard") return reshard(words[1], words[2], chosen.shards);
  if (name == "convert") {
    sys::write_out(convert(words[1], words[2], chosen.convert));
    return 0;
  }
  if (name == "ls") return list(words[1]);
  return name == "show" ? show(words[1]) : diff(words[1], words[2]);
}

}  // namespace

int main(int count, char** arguments) {
  return sys::run_program(command, [&] {
    Chosen chosen;
    CommandOptions options(command, "ls|show|verify|diff|reshard|convert PATH...", about,
                           CommandOptions::Words::allowed);
    options.add(
        {"shards", "N",
         "reshard: so many files for the model, and as many for the optimizer; 0: of 4 GiB", "0"},
        number_into(chosen.shards, 0, 99'999));
    options.add({"model-key", "KEY", "convert: where FROM has the model's state_dict"},
                text_into(chosen.convert.source.model_key));
    options.add({"optimizer-key", "KEY", "convert: where FROM has the optimizer's"},
                text_into(chosen.convert.source.optimizer_key));
    options.add({"parameters", "FILE",
                 "convert: names of the optimizer's parameters, one on each line, in the order of "
                 "its groups"},
                text_into(chosen.convert.source.parameters));
    options.add(
        {"shard-bytes", "N", "convert: bytes of tensors in one file of a folder", "5000000000"},
        number_into(chosen.convert.shard_bytes, 1, INT64_MAX));
    const std::vector<std::string> words(arguments + 1, arguments + count);
    if (const auto code = sys::answer(options.read(words), options)) return *code;
    return run(options.words(), chosen);
  });
}
