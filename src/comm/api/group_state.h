// What the copies of one Group share.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/group.h>

#include "comm/diagnose/failure.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace lockstep {

class GroupState {
 public:
  // No backend, or one of a single rank, makes a group that answers for itself.
  GroupState(std::shared_ptr<Backend> backend, std::string name, Duration timeout);

  [[nodiscard]] int rank() const { return has_backend() ? backend_->rank() : 0; }
  [[nodiscard]] int size() const { return has_backend() ? backend_->size() : 1; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::string_view backend_name() const {
    return has_backend() ? backend_->name() : "one";
  }
  [[nodiscard]] bool has_backend() const { return backend_ != nullptr; }
  // Null for a group that answers for itself. InvalidArgument in a forked child.
  [[nodiscard]] const std::shared_ptr<Backend>& backend() const {
    if (backend_) backend_->check_process();
    return backend_;
  }

  [[nodiscard]] Duration timeout() const;
  void set_timeout(Duration timeout);
  // The number of this group's next part (split or subset): the same on all ranks, as they make
  // them in the same order.
  [[nodiscard]] std::uint64_t next_part();

  Work post(Call call, const CallOptions& options, std::source_location where);
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options,
                                             std::source_location where);
  void abort(std::string_view reason);

 private:
  const std::shared_ptr<Backend> backend_;
  const std::string name_;
  mutable std::mutex mutex_;  // guards what follows, and posts
  Duration timeout_;
  std::uint64_t parts_ = 0;
  Failure alone_failure_;  // of a group without a backend
};

}  // namespace lockstep
