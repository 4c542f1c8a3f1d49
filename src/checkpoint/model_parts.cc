#include "checkpoint/model_parts.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/rank_tensors.h"
#include "module/tensors.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <functional>
#include <set>

namespace lockstep::checkpoint {
namespace {

void check_dense(const Part& part) {
  bool is_dense = part.tensor.layout() == at::kStrided && !part.tensor.is_quantized();
  check(is_dense, "{} cannot be saved: expected a dense tensor, found {}", escaped(part.name),
        part.tensor.toString());
}

FilePart file_part(const std::string& name, const Part& part) {
  return {.part = {.name = name,
                   .tensor = no_elements(part.tensor.scalar_type()),
                   .slice = part.slice,
                   .kind = part.kind},
          .values = [tensor = part.tensor] { return tensor; }};
}

void check_entry(const Part& part, const std::string& name, const TensorEntry& entry) {
  check_input(entry.shape == part.slice.sizes,
              "loading a model: {}: expected shape [{}], found [{}]", escaped(name),
              listed(part.slice.sizes, ", "), listed(entry.shape, ", "));
  check_input(entry.dtype == part.tensor.scalar_type(), "{}: expected dtype {}, found {}",
              escaped(name), c10::toString(part.tensor.scalar_type()), c10::toString(entry.dtype));
  check_input(at::has_internal_overlap(part.tensor) != at::MemOverlap::Yes,
              "loading a model: {}: expected a tensor whose elements do not share memory, found an "
              "expanded one: make it with clone()",
              escaped(name));
}

// Returns those names of a part that are in the file. Throws BadInput if no name is.
std::vector<std::string> names_in(const PartsReader& file, const Part& part) {
  std::vector<std::string> names = names_of(part);
  std::erase_if(names, [&](const std::string& name) { return file.find(name) == nullptr; });
  check_input(!names.empty(), "loading a model: expected a tensor named {}, found none",
              escaped(part.name));
  return names;
}

void check_all_known(const PartsReader& file, const std::set<std::string>& known) {
  for (const TensorEntry& entry : file.entries())
    check_input(known.contains(entry.name),
                "loading a model: found a tensor named {} that the model does not have",
                escaped(entry.name));
}

// Collective. `check_own` checks this rank's parts and adds the names of their tensors to the set.
// Throws CollectiveFailure if the file has a tensor that no rank has.
void check_fits(PartsReader& file, const std::function<void(std::set<std::string>&)>& check_own) {
  std::set<std::string> known;
  run_on_all_or_fail(file.group(), [&] { file.in_file([&] { check_own(known); }); });
  known = names_of_all(file.group(), known);
  run_on_all_or_fail(file.group(), [&] { file.in_file([&] { check_all_known(file, known); }); });
}

// Fills each part from one of its names; values under its other names are only compared.
void read_parts(const std::vector<Part>& state, PartsReader& model) {
  std::vector<Part> parts, copies;
  std::vector<const Part*> tied;
  for (const Part& part : state) {
    if (part.kind == PartKind::ignored) continue;
    std::vector<std::string> names = names_in(model, part);
    parts.push_back({.name = names.front(), .tensor = part.tensor, .slice = part.slice});
    for (std::size_t i = 1; i < names.size(); ++i) {
      copies.push_back(
          {.name = names[i], .tensor = at::empty_like(part.tensor), .slice = part.slice});
      tied.push_back(&part);
    }
  }
  model.read(parts);
  model.read(copies);
  run_on_all_or_fail(model.group(), [&] {
    for (std::size_t i = 0; i < copies.size(); ++i)
      model.in_file([&] {
        check_input(modules::have_equal_values(copies[i].tensor, tied[i]->tensor),
                    "loading a model: {} is tied to {}: expected equal values, found different "
                    "ones",
                    escaped(copies[i].name), escaped(tied[i]->name));
      });
  });
}

void read_ignored(const std::vector<Part>& state, PartsReader& ignored) {
  std::vector<Part> parts;
  for (const Part& part : state)
    if (part.kind == PartKind::ignored)
      parts.push_back({.name = prefix_of(ignored.group().rank()) + part.name,
                       .tensor = part.tensor,
                       .slice = part.slice});
  ignored.read(parts);
}

}  // namespace

std::vector<FilePart> model_parts(const std::vector<Part>& state, bool aliases) {
  std::vector<FilePart> parts;
  for (const Part& part : state) {
    check_dense(part);
    if (part.kind == PartKind::ignored) continue;
    parts.push_back(file_part(part.name, part));
    if (!aliases) continue;
    for (const std::string& name : part.aliases) parts.push_back(file_part(name, part));
  }
  return parts;
}

std::vector<FilePart> ignored_parts(const std::vector<Part>& state, int rank) {
  std::vector<FilePart> parts;
  for (const Part& part : state)
    if (part.kind == PartKind::ignored)
      parts.push_back(file_part(prefix_of(rank) + part.name, part));
  return parts;
}

void check_model_fits(const std::vector<Part>& state, PartsReader& file) {
  check_fits(file, [&](std::set<std::string>& known) {
    for (const Part& part : state) {
      if (part.kind == PartKind::ignored) continue;
      for (const std::string& name : names_in(file, part)) {
        check_entry(part, name, *file.find(name));
        known.insert(name);
      }
    }
  });
}

void check_ignored_fit(const std::vector<Part>& state, PartsReader& file) {
  check_fits(file, [&](std::set<std::string>& known) {
    for (const Part& part : state) {
      if (part.kind != PartKind::ignored) continue;
      std::string name = prefix_of(file.group().rank()) + part.name;
      const TensorEntry* entry = file.find(name);
      check_input(entry != nullptr,
                  "expected a tensor named {}, found none: a tensor that the handle ignores is "
                  "saved by each rank, so load on as many ranks as have saved it",
                  escaped(name));
      check_entry(part, name, *entry);
      known.insert(std::move(name));
    }
  });
}

void check_nothing_ignored(const std::vector<Part>& state) {
  check_input(std::ranges::find(state, PartKind::ignored, &Part::kind) == state.end(),
              "the handle ignores tensors, but the checkpoint has no ignored tensors");
}

void read_model(Handle& handle, PartsReader& model, PartsReader* ignored) {
  const LoadScope scope = handle.loading();
  read_parts(scope.parts(), model);
  if (ignored != nullptr) read_ignored(scope.parts(), *ignored);
}

}  // namespace lockstep::checkpoint
