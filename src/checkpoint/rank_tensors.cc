#include "checkpoint/rank_tensors.h"

#include "base/check.h"
#include "base/escaped.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace lockstep::checkpoint {
namespace {

std::string name_of_state(int rank) { return formatted("rank{}", rank); }

// Checks dtype and size before the state is read: a damaged file may claim any size.
void check_kind(const std::filesystem::path& file, const TensorEntry& entry) {
  check_input(entry.dtype == at::kByte && entry.shape.size() == 1,
              "{}: {}: expected a generator's state as bytes, U8 [n], found {} [{}]", file.string(),
              entry.name, c10::toString(entry.dtype), listed(entry.shape, ", "));
  check_input(entry.shape.front() == own_random_state().numel(),
              "{}: {}: expected a generator's state of {} bytes, found {}", file.string(),
              entry.name, own_random_state().numel(), entry.shape.front());
}

// Tries the state on a temporary generator.
void check_state(const std::filesystem::path& file, const TensorEntry& entry,
                 const at::Tensor& state) {
  try {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw BadInput(formatted("{}: {}: not the state of a random generator: {}", file.string(),
                             entry.name, escaped(error.what_without_backtrace())));
  }
}

}  // namespace

at::Tensor own_random_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

std::vector<FilePart> random_parts(int rank) {
  return {whole_part(name_of_state(rank), own_random_state())};
}

std::vector<FilePart> random_parts_of_all(const at::Tensor& states) {
  std::vector<FilePart> parts;
  for (std::int64_t rank = 0; rank < states.size(0); ++rank)
    parts.push_back(whole_part(name_of_state(static_cast<int>(rank)), states[rank]));
  return parts;
}

void check_random_states(PartsReader& file, int ranks) {
  check_input(std::ssize(file.entries()) == ranks,
              "{}: expected as many tensors as there are ranks in layout.json, {}, found {}",
              file.path().string(), ranks, file.entries().size());
  for (int rank = 0; rank < ranks; ++rank) {
    const TensorEntry* entry = file.find(name_of_state(rank));
    check_input(entry != nullptr, "{}: has no {}", file.path().string(), name_of_state(rank));
    check_kind(file.path(), *entry);
    check_state(file.path(), *entry, file.read_whole(*entry));
  }
}

void load_random_state(PartsReader& file) {
  at::Tensor mine = own_random_state();
  file.read({{.name = name_of_state(file.group().rank()),
              .tensor = mine,
              .slice = layout::whole_slice(mine.sizes())}});
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(mine);
}

std::string prefix_of(int rank) { return formatted("rank{}.", rank); }

std::vector<FilePart> own_parts(const std::map<std::string, at::Tensor>& own, int rank) {
  std::vector<FilePart> parts;
  for (const auto& [name, tensor] : own) {
    check(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized(),
          "SaveOptions::per_rank: {}: expected a dense tensor, found {}", escaped(name),
          tensor.defined() ? tensor.toString() : "an undefined one");
    parts.push_back(whole_part(prefix_of(rank) + name, tensor));
  }
  return parts;
}

std::map<std::string, at::Tensor> read_own(PartsReader& file) {
  const std::string prefix = prefix_of(file.group().rank());
  std::map<std::string, at::Tensor> own;
  std::vector<Part> parts;
  run_on_all_or_fail(file.group(), [&] {
    for (const TensorEntry& entry : file.entries()) {
      if (!entry.name.starts_with(prefix)) continue;
      at::Tensor tensor = at::empty(entry.shape, entry.dtype);
      parts.push_back(
          {.name = entry.name, .tensor = tensor, .slice = layout::whole_slice(entry.shape)});
      own.emplace(entry.name.substr(prefix.size()), std::move(tensor));
    }
  });
  file.read(parts);
  return own;
}

}  // namespace lockstep::checkpoint
