// Reads the folder of a distributed checkpoint of PyTorch, tensor by tensor.
#pragma once

#include "checkpoint/pickle.h"
#include "checkpoint/torch_archive.h"

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

class DistributedFolder {
 public:
  struct StoredRange {
    std::string file;  // in the folder
    FileRange range;
  };
  struct Chunk {
    layout::Box box;  // of the whole tensor
    StoredRange place;
  };
  struct Entry {
    bool is_tensor = false;
    at::ScalarType dtype{};
    std::vector<std::int64_t> sizes;
    std::vector<Chunk> chunks;                  // of a tensor: each element is in one chunk
    std::set<std::vector<std::int64_t>> empty;  // offsets of parts without elements
    StoredRange place;                          // of a value that is not a tensor
    std::vector<c10::IValue> path;  // keys that lead to it: strings, and indices of lists
  };

  using Entries = std::map<std::string, Entry>;

  // Reads and checks .metadata. Throws BadInput and SystemError, which name the file.
  DistributedFolder(std::filesystem::path folder, TorchReading how);
  DistributedFolder(const DistributedFolder&) = delete;
  DistributedFolder& operator=(const DistributedFolder&) = delete;

  [[nodiscard]] const Entries& entries() const { return entries_; }
  // Returns the entries in the order of the saved state_dict. PyTorch's planner keeps it in
  // planner_data; the order of state_dict_metadata also depends on which rank wrote a tensor.
  [[nodiscard]] const std::vector<const Entries::value_type*>& in_order() const {
    return in_order_;
  }

  // tensor() returns a whole tensor, assembled from its parts; value() returns any other saved
  // value. Throw BadInput and SystemError, which name the file.
  [[nodiscard]] at::Tensor tensor(const Entry& entry) const;
  // Returns one part of a tensor; with TorchReading::map, only touched pages are read.
  [[nodiscard]] at::Tensor part(const Entry& entry, const Chunk& chunk) const;
  [[nodiscard]] c10::IValue value(const Entry& entry) const;

 private:
  void read_tensors(const Pickle& pickle, Pickle::Ref metadata);
  void read_places(const Pickle& pickle, Pickle::Ref metadata);
  void read_paths(const Pickle& pickle, Pickle::Ref metadata);
  void check_complete() const;
  [[nodiscard]] c10::IValue read(const StoredRange& place) const;

  const std::filesystem::path folder_;
  const TorchReading how_;
  Entries entries_;
  std::vector<const Entries::value_type*> in_order_;
  mutable std::map<std::string, std::shared_ptr<const TorchSource>> files_;
};

// Checks parts of one tensor in different files.

// Throws BadInput, with `name`, unless each element of a tensor of `sizes` is in exactly one of
// `boxes`. No box may be empty or exceed the tensor.
//
// Sweeps along the dim in which boxes begin at the most places, and compares only boxes that
// overlap in it: none if the tensor is divided along one dim. Returns the number of compared pairs.
std::size_t check_cover(const std::string& name, std::span<const std::int64_t> sizes,
                        std::span<const layout::Box> boxes);

}  // namespace lockstep::checkpoint
