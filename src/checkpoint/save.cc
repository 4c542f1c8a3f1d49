#include "base/check.h"
#include "base/scope_exit.h"
#include "checkpoint/content.h"
#include "checkpoint/folders.h"
#include "checkpoint/model_parts.h"
#include "checkpoint/parts_writer.h"
#include "checkpoint/save_lock.h"
#include "sys/files.h"

#include <lockstep/checkpoint/checkpoint.h>

#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {

namespace fs = std::filesystem;

fs::path save(const fs::path& out, const Handle& handle, const torch::optim::Optimizer& optimizer,
              const TrainingState& state, const SaveOptions& options) {
  Group group = handle.group();
  Content content = content_of(group, handle, optimizer, state, options);
  return write_content(group, out, content);
}

void save_model(const fs::path& path, const Handle& handle, const ModelOptions& options) {
  Group group = handle.group();
  std::vector<FilePart> parts;
  together(group, [&] { parts = model_parts(handle.state_parts(), options.aliases); });
  PlannedTensors file(group, std::move(parts), options.metadata);
  const std::string name = path.filename().string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::string word;
  std::optional<SaveLock> lock;
  together(group, [&] {
    if (!group.is_root()) return;
    check(!name.empty(), "save_model: expected the name of a file, found {}", path.string());
    check_input(fs::is_directory(folder), "{}: expected a folder to save a model in, found none",
                folder.string());
    lock.emplace(
        folder, name, [&](const std::string& found) { return found == name; },
        static_cast<bool>(options.before_naming));
    word = random_word();
  });
  const fs::path partial = folder / partial_name(name, broadcast_text(group, std::move(word)));
  ScopeExit remove([&] {
    std::error_code nothing_more_to_do;
    if (group.is_root()) fs::remove(partial, nothing_more_to_do);
  });
  write_parts(group, partial, file);
  together(group, [&] {
    if (group.is_root() && options.before_naming) options.before_naming();
    if (group.is_root()) sys::rename_durably(partial, path);
    lock.reset();  // removed before other ranks look into the folder
  });
}

}  // namespace lockstep::checkpoint
