// Offload: tensors of the host for a handle's shards and what its optimizer keeps of them: in
// mapped files of one folder, where what is not in use need not be in memory, or, without a folder,
// in memory that devices read.
//
// Every tensor has a file of its own, without a name: several ranks and handles may use one folder,
// and nothing is left in it. Thread-safe.
#pragma once

#include "base/mutex.h"
#include "sys/reserved_file.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/optim/state_memory.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::sharded {

class Offload final : public optim::StateMemory, public std::enable_shared_from_this<Offload> {
 public:
  // An empty folder is none.
  explicit Offload(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] bool is_in_files() const { return !folder_.empty(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  // Of all tensors that are there.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  [[nodiscard]] at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override;
  [[nodiscard]] bool holds(const at::Tensor& tensor) const override;
  void will_use(const at::Tensor& tensor) noexcept override;
  void has_used(const at::Tensor& tensor) noexcept override;

 private:
  [[nodiscard]] at::Tensor zeros_in_memory(std::int64_t count, at::ScalarType dtype);
  void forget(const std::byte* begin);

  const std::filesystem::path folder_;
  std::atomic<std::int64_t> bytes_ = 0;
  mutable Mutex mutex_;
  std::map<const std::byte*, sys::ReservedFile> files_
      LOCKSTEP_GUARDED_BY(mutex_);  // by where they are mapped
};

// Collective, before anything is taken: whether every rank can have its shards of `parameters` in
// its folder. SystemError where the disk refuses, BadInput on the other ranks.
void check_room(const Offload& offload, const Group& group,
                const std::vector<NamedParameter>& parameters, int world, const CallOptions& call);

}  // namespace lockstep::sharded
