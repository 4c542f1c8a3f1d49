// GroupState: the state that all copies of one Group and its Works share. It gives each call its
// number, records the call in the flight record and passes it to the backend, in one place for all
// backends.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/group.h>

#include "base/mutex.h"
#include "comm/call/record.h"
#include "comm/diagnose/flight_recorder.h"
#include "comm/diagnose/report.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class GroupState : public std::enable_shared_from_this<GroupState> {
 public:
  // Without a backend, or with a backend of one rank, performs calls itself. Without a recorder,
  // records nothing.
  GroupState(std::shared_ptr<Backend> backend, GroupNames names, Duration timeout,
             std::shared_ptr<diagnose::FlightRecorder> recorder = nullptr);
  ~GroupState();
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  [[nodiscard]] int rank() const { return has_backend() ? backend_->rank() : 0; }
  [[nodiscard]] int size() const { return has_backend() ? backend_->size() : 1; }
  [[nodiscard]] const std::string& name() const { return names_.name(); }
  [[nodiscard]] const GroupNames& names() const { return names_; }
  [[nodiscard]] std::string_view backend_name() const {
    return has_backend() ? backend_->name() : "one";
  }
  [[nodiscard]] bool has_backend() const { return backend_ != nullptr; }
  // Null for a group without a backend (one rank). Throws InvalidArgument in a forked child.
  [[nodiscard]] const std::shared_ptr<Backend>& backend() const {
    if (backend_) backend_->check_process();
    return backend_;
  }
  // Null if calls are not recorded.
  [[nodiscard]] diagnose::FlightRecorder* recorder() const { return recorder_.get(); }

  [[nodiscard]] Duration timeout() const;
  void set_timeout(Duration timeout);
  [[nodiscard]] GroupTraffic traffic() const;
  // Returns the number of this group's next part (split or subset). All ranks make parts in the
  // same order, so the number is equal on all ranks.
  [[nodiscard]] std::uint64_t next_part();
  // Returns the group of `ranks`, which include this rank. The conditions of Backend::subset()
  // hold.
  [[nodiscard]] std::shared_ptr<GroupState> part(std::span<const int> ranks,
                                                 std::string name) const;
  // Returns the group of all ranks for tensors of the host. As Backend::on_host().
  [[nodiscard]] std::shared_ptr<GroupState> on_host(std::string name) const;

  Work post(Call call, const CallOptions& options, std::source_location where);
  // As the functions of Work, for a group with a backend.
  void wait(CallId id, std::uint64_t entry);
  void synchronize(CallId id, std::uint64_t entry);
  [[nodiscard]] bool done(CallId id);
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options,
                                             std::source_location where);
  void abort(std::string_view reason);

 private:
  // Fills in the identity, type and elements of the call. Returns its entry in the flight record; 0
  // for none.
  [[nodiscard]] std::uint64_t post_to_backend(Call& call) LOCKSTEP_REQUIRES(mutex_);

  // Runs a wait; an exception of it goes to the flight record.
  template <class Wait>
  void noting_failure(std::uint64_t entry, Wait&& wait);

  const std::shared_ptr<Backend> backend_;
  const GroupNames names_;
  const std::shared_ptr<diagnose::FlightRecorder> recorder_;
  const std::uint32_t recorded_ = 0;  // the recorder's number of this group
  mutable Mutex mutex_;               // held by each post, too
  Duration timeout_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t parts_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // How many calls have been posted, by ChannelKey::index_at().
  std::vector<std::uint64_t> counts_ LOCKSTEP_GUARDED_BY(mutex_);
  GroupTraffic traffic_ LOCKSTEP_GUARDED_BY(mutex_);
  diagnose::Failure alone_failure_ LOCKSTEP_GUARDED_BY(mutex_);  // of a group without a backend
};

// The world of a rank, recorded. The record is written into the folder that LOCKSTEP_FLIGHT names.
[[nodiscard]] Group recorded_world(std::shared_ptr<Backend> backend, Duration timeout);

}  // namespace lockstep
