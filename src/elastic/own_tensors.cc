#include "elastic/own_tensors.h"

#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"
#include "checkpoint/folders.h"
#include "checkpoint/parts_reader.h"
#include "elastic/commits.h"

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/together.h>

#include <string>
#include <system_error>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "own-", suffix = ".safetensors";

fs::path file_beside(const fs::path& out, std::int64_t step) {
  const std::string folder = checkpoint::checkpoint_name(step);
  return out / formatted("{}{}{}", prefix, folder.substr(folder.find('-') + 1), suffix);
}

void remove_orphans(const fs::path& out, std::int64_t newest) {
  std::error_code nothing_more_to_do;
  for (const auto& entry : fs::directory_iterator(out, nothing_more_to_do)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    const auto step = parse_integer(name);
    if (step && *step < newest && !fs::exists(out / checkpoint::checkpoint_name(*step)))
      fs::remove(entry.path(), nothing_more_to_do);
  }
}

void check_names(const checkpoint::PartsReader& file, const checkpoint::NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const checkpoint::TensorEntry* entry = file.find(name);
    check_input(entry != nullptr, "expected a tensor named {}, found none", visible(name));
    check_input(
        tensor.sizes() == at::IntArrayRef(entry->shape) && tensor.scalar_type() == entry->dtype,
        "{}: expected {} [{}], found {} [{}]", visible(name), c10::toString(tensor.scalar_type()),
        listed(tensor.sizes(), ", "), c10::toString(entry->dtype), listed(entry->shape, ", "));
  }
  check_input(tensors.size() == file.entries().size(), "expected {} tensors, found {}",
              tensors.size(), file.entries().size());
}

}  // namespace

void save_own_tensors(Group& group, const fs::path& out, std::int64_t step,
                      const checkpoint::NamedTensors& tensors, std::int64_t keep) {
  if (tensors.empty()) return;
  together(group, [&] {
    if (!group.is_root()) return;
    fs::create_directories(out);
    checkpoint::write_safetensors(file_beside(out, step), tensors);
    if (keep > 0) remove_orphans(out, step);
  });
}

void read_own_tensors(Group& group, const fs::path& folder,
                      const checkpoint::NamedTensors& tensors) {
  if (tensors.empty()) return;
  const std::int64_t step = checkpoint::step_of(folder);
  const fs::path path = step < 0 ? folder / program_file : file_beside(folder.parent_path(), step);
  checkpoint::PartsReader file(group, path);
  together(group, [&] { file.in_file([&] { check_names(file, tensors); }); });
  std::vector<checkpoint::PartToFill> parts;
  for (const auto& [name, tensor] : tensors)
    parts.push_back({name, layout::whole_slice(tensor.sizes()), tensor});
  file.read(parts);
}

}  // namespace lockstep
