// The tensors of a safetensors file, or of the shards that its index names (shards.h).
#pragma once

#include "checkpoint/shards.h"
#include "checkpoint/tensor_source.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

class TensorFiles {
 public:
  TensorFiles() = default;
  // Opens `path` or, if there is no such file, the shards that its index names, and checks them as
  // parse() does. Throws BadInput, which names the file; SystemError if there is no file.
  explicit TensorFiles(const std::filesystem::path& path);

  // The steps of the constructor, for files that other ranks read too: opened() reads the texts of
  // the headers, and described() returns the object with the same description() without opening
  // files. parse() checks the headers: every tensor must be in exactly one file, the one that the
  // index names, if this object has read an index.
  [[nodiscard]] static TensorFiles opened(const std::filesystem::path& path);
  [[nodiscard]] static TensorFiles described(const std::filesystem::path& path,
                                             const std::string& description);
  [[nodiscard]] std::string description() const;
  void parse();

  // One of the files.
  struct Shard {
    std::filesystem::path path;
    std::string text;                    // of the header
    std::uint64_t data_bytes = 0;        // of the tensors
    std::optional<sys::PlainFile> file;  // absent: not opened
    Metadata metadata;
  };
  [[nodiscard]] static Shard open(const std::filesystem::path& path);
  [[nodiscard]] std::vector<Shard>& shards() { return shards_; }
  [[nodiscard]] const std::vector<Shard>& shards() const { return shards_; }

  // Returns the path of the file, or of the index if there are shards.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Returns the path of the file, or the paths of the shards.
  [[nodiscard]] std::vector<std::filesystem::path> files() const;
  // Returns the entries of all files. Offsets are relative to the tensor's own file.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  // Maps each name to its index in entries().
  [[nodiscard]] const std::map<std::string, std::size_t>& by_name() const { return by_name_; }
  // Returns null if there is no tensor of that name.
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;
  // Returns the metadata of the first file.
  [[nodiscard]] const Metadata& metadata() const { return shards_.front().metadata; }
  // Returns the file with the tensor.
  [[nodiscard]] const Shard& shard_of(const TensorEntry& entry) const;
  [[nodiscard]] bool has_checksum(const TensorEntry& entry) const;

  // Throws BadInput if the tensor has a checksum and it is not `found`.
  void compare(const TensorEntry& entry, std::uint32_t found) const;
  // Throws BadInput if the files are larger than the host's memory.
  void check_fit_memory() const;
  // Reads some bytes of the tensor, from `offset` on. Thread-safe. Throws BadInput if the file
  // became shorter.
  void read_at(const TensorEntry& entry, std::uint64_t offset, std::span<std::byte> bytes) const;
  // Reads one tensor as it is in the file and, with `verify`, compares its checksum.
  [[nodiscard]] at::Tensor read(const TensorEntry& entry, bool verify = true) const;

 private:
  void check_indexed() const;

  std::filesystem::path path_;
  WeightMap index_;  // empty: one file, or described()
  std::vector<Shard> shards_;
  std::vector<TensorEntry> entries_;
  std::vector<std::size_t> shard_of_entry_;
  std::map<std::string, std::size_t> by_name_;
};

// Writes a folder with model.safetensors, or with shards and their index, so that a half-written
// model is never taken for a complete one.

// `config`: the text of config.json, which is removed first and written last, because no reader of
// models looks at the weights without it. std::nullopt: an existing config.json is kept.
void write_weight_folder(const std::filesystem::path& folder, const TensorSources& tensors,
                         const Metadata& metadata, ShardedWriting how,
                         const std::optional<std::string>& config = {});

}  // namespace lockstep::checkpoint
