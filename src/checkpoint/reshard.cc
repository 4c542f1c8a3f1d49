#include "checkpoint/reshard.h"

#include "base/check.h"
#include "checkpoint/content.h"
#include "checkpoint/file_names.h"
#include "checkpoint/folders.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/shards.h"

#include <lockstep/checkpoint/training_state.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<FilePart> parts_in(const std::shared_ptr<PartsReader>& file) {
  std::vector<FilePart> parts;
  for (const TensorEntry& entry : file->entries())
    parts.push_back({.part = {.name = entry.name,
                              .tensor = no_elements(entry.dtype),
                              .slice = layout::whole_slice(entry.shape)},
                     .values = [file, &entry] { return file->read_whole(entry); }});
  return parts;
}

}  // namespace

void reshard(const fs::path& from, const fs::path& to, const Sharding& sharding) {
  Content content{.name = to.filename().string(),
                  .json = parse_json_text(from, read_json_text(from)),
                  .files = {}};
  check_input(!content.name.empty(), "{}: expected the name of a new folder", to.string());
  const std::int64_t step = content.json.state.step;
  check_input(step_of(to) < 0 || step_of(to) == step,
              "{}: expected the name {}, the step of {}, or a name without a step", to.string(),
              checkpoint_name(step), from.string());
  verify(from);
  Group alone;
  for (const char* name : tensor_files) {
    if (!fs::exists(from / name) && !has_index(from / name)) continue;
    auto file = std::make_shared<PartsReader>(alone, from / name);
    content.files.push_back(
        {name, PlannedTensors(alone, parts_in(file), without_checksums(file->metadata()),
                              name == random_file ? Sharding{.files = 1} : sharding)});
  }
  write_content(alone, to.has_parent_path() ? to.parent_path() : fs::path("."), content);
}

}  // namespace lockstep::checkpoint
