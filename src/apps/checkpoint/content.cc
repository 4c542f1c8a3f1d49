#include "apps/checkpoint/content.h"

#include "base/check.h"
#include "base/format.h"
#include "checkpoint/dtype_names.h"
#include "checkpoint/folders.h"
#include "checkpoint/shards.h"

#include <lockstep/checkpoint/training_state.h>

#include <algorithm>
#include <string_view>

namespace lockstep::apps {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) { return fs::exists(path / checkpoint::layout_file); }

std::vector<fs::path> all_at(const fs::path& path) {
  check_input(fs::exists(path), "{}: expected a run, a checkpoint or a file, found nothing",
              path.string());
  if (!fs::is_directory(path) || is_checkpoint(path)) return {path};
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path);
  const auto is_file_of_tensors = [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors";
  };
  check_input(!folders.empty(), "{}: expected a checkpoint in this folder, found none{}",
              path.string(),
              std::ranges::any_of(fs::directory_iterator(path), is_file_of_tensors)
                  ? "; it has safetensors files without an index: name one of them"
                  : "");
  return folders;
}

fs::path one_at(const fs::path& path) { return all_at(path).back(); }

std::vector<fs::path> tensor_files_of(const fs::path& path) {
  if (!fs::is_directory(path)) {
    const std::string text = path.string();
    const bool is_index = text.ends_with(checkpoint::index_end);
    return {is_index ? text.substr(0, text.size() - std::string_view(checkpoint::index_end).size())
                     : text};
  }
  std::vector<fs::path> files;
  for (const char* name : checkpoint::tensor_files)
    if (fs::exists(path / name) || checkpoint::has_index(path / name)) files.push_back(path / name);
  return files;
}

std::uint64_t bytes_of(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

std::string kind_of(const checkpoint::TensorEntry& entry) {
  return formatted("{} [{}]", checkpoint::name_of(entry.dtype), listed(entry.shape, ", "));
}

}  // namespace lockstep::apps
