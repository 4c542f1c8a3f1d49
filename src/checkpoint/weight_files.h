// The tensors of a folder's model.safetensors, or of the shards that model.safetensors.index.json
// names; also under another file name.
#pragma once

#include "checkpoint/folders.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/tensor_source.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

class WeightFiles {
 public:
  // Reads and checks the headers; every tensor must be in exactly one file, the one that the index
  // names. Throws BadInput, which names the file; SystemError if there is no file.
  explicit WeightFiles(const std::filesystem::path& folder, const std::string& name = model_file);
  // Opens one file with any name.
  [[nodiscard]] static WeightFiles of_file(const std::filesystem::path& path);

  [[nodiscard]] std::vector<std::string> names() const;
  // Returns the metadata of the first file, without checksums.
  [[nodiscard]] Metadata metadata() const;
  [[nodiscard]] bool has(const std::string& name) const { return places_.contains(name); }
  [[nodiscard]] const TensorEntry& entry(const std::string& name) const;
  // Returns the file with the tensor, for messages.
  [[nodiscard]] const std::filesystem::path& file_of(const std::string& name) const;

  // Throws BadInput if the files are larger than the host's memory.
  void check_fit_memory() const;
  // Reads one tensor as it is in the file. Throws BadInput if the file became shorter or, with
  // `verify`, the checksum is wrong.
  [[nodiscard]] at::Tensor read(const std::string& name, bool verify = true) const;

 private:
  WeightFiles() = default;

  struct File {
    sys::PlainFile file;
    SafetensorsHeader header;
    std::uint64_t data_begin;
  };
  struct FileEntry {
    std::size_t file, entry;
  };

  static File open(const std::filesystem::path& path);
  void add(std::size_t file);
  void read_index(const std::filesystem::path& index);

  std::vector<File> files_;
  std::map<std::string, FileEntry> places_;
};

// Writes a folder with model.safetensors, or with shards and their index, so that a half-written
// model is never taken for a complete one.

// `config`: the text of config.json, which is removed first and written last, because no reader of
// models looks at the weights without it. std::nullopt: an existing config.json is kept.
void write_weight_folder(const std::filesystem::path& folder, const TensorSources& tensors,
                         const Metadata& metadata, ShardedWriting how,
                         const std::optional<std::string>& config = {});

}  // namespace lockstep::checkpoint
