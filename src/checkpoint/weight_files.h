// The tensors of a folder's model.safetensors, or of the shards that model.safetensors.index.json
// names; the same of another name.
#pragma once

#include "checkpoint/file_names.h"
#include "checkpoint/safetensors_header.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

class WeightFiles {
 public:
  // Reads and checks the headers; every tensor stands in one file, the one that the index names.
  // BadInput names the file, SystemError where there is none.
  explicit WeightFiles(const std::filesystem::path& folder, const std::string& name = model_file);
  // The same of one file, whatever its name.
  [[nodiscard]] static WeightFiles of_file(const std::filesystem::path& path);

  [[nodiscard]] std::vector<std::string> names() const;
  // The first file's, without checksums.
  [[nodiscard]] Metadata metadata() const;
  [[nodiscard]] bool has(const std::string& name) const { return places_.contains(name); }
  [[nodiscard]] const TensorEntry& entry(const std::string& name) const;
  // The file that has the tensor, for messages.
  [[nodiscard]] const std::filesystem::path& file_of(const std::string& name) const;

  // One tensor, as the file has it. BadInput when the file became shorter or its checksum is wrong.
  [[nodiscard]] at::Tensor read(const std::string& name) const;

 private:
  WeightFiles() = default;

  struct File {
    sys::PlainFile file;
    SafetensorsHeader header;
    std::uint64_t data_begin;
  };
  struct Place {
    std::size_t file, entry;
  };

  static File open(const std::filesystem::path& path);
  void add(std::size_t file);
  void read_index(const std::filesystem::path& index);

  std::vector<File> files_;
  std::map<std::string, Place> places_;
};

}  // namespace lockstep::checkpoint
