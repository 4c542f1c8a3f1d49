// The folder of a distributed checkpoint of PyTorch, tensor by tensor.
#pragma once

#include "checkpoint/pickle.h"
#include "checkpoint/torch_archive.h"

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

class DistributedFolder {
 public:
  struct Place {
    std::string file;  // in the folder
    FileRange range;
  };
  struct Chunk {
    layout::Box box;  // of the whole tensor
    Place place;
  };
  struct Entry {
    bool is_tensor = false;
    at::ScalarType dtype{};
    std::vector<std::int64_t> sizes;
    std::vector<Chunk> chunks;                  // of a tensor: each element in one of them
    std::set<std::vector<std::int64_t>> empty;  // where parts without elements begin
    Place place;                                // of what is no tensor
    std::vector<c10::IValue> path;  // keys that lead to it: texts, and whole numbers in lists
  };

  using Entries = std::map<std::string, Entry>;

  // Reads and checks .metadata; BadInput and SystemError name the file.
  DistributedFolder(std::filesystem::path folder, TorchReading how);
  DistributedFolder(const DistributedFolder&) = delete;
  DistributedFolder& operator=(const DistributedFolder&) = delete;

  [[nodiscard]] const Entries& entries() const { return entries_; }
  // The same in the order of the state_dict that was saved. PyTorch's planner keeps it in
  // planner_data; the order of state_dict_metadata also depends on which rank wrote a tensor.
  [[nodiscard]] const std::vector<const Entries::value_type*>& in_order() const {
    return in_order_;
  }

  // A whole tensor, put together; or what else was saved there. BadInput and SystemError name the
  // file.
  [[nodiscard]] at::Tensor tensor(const Entry& entry) const;
  // One of its parts; with TorchReading::map only what is touched is read.
  [[nodiscard]] at::Tensor part(const Entry& entry, const Chunk& chunk) const;
  [[nodiscard]] c10::IValue value(const Entry& entry) const;

 private:
  void read_tensors(const Pickle& pickle, Pickle::Ref metadata);
  void read_places(const Pickle& pickle, Pickle::Ref metadata);
  void read_paths(const Pickle& pickle, Pickle::Ref metadata);
  void check_complete() const;
  [[nodiscard]] c10::IValue read(const Place& place) const;

  const std::filesystem::path folder_;
  const TorchReading how_;
  Entries entries_;
  std::vector<const Entries::value_type*> in_order_;
  mutable std::map<std::string, std::shared_ptr<const TorchSource>> files_;
};

}  // namespace lockstep::checkpoint
