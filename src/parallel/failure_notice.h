// FailureNotice: after a backward() that an exception has ended on some ranks, which ranks these
// are, and what their exceptions say where that is known. Lockstep's own are known; those of the
// program's functions LibTorch does not tell.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

namespace lockstep::parallel {

class FailureNotice {
 public:
  // On this rank, before post().
  void set_text(std::string text) { text_ = std::move(text); }
  // The text of set_text(), in one line, which is empty from then on.
  [[nodiscard]] std::string take_text();
  // Posts what this rank says; every rank does, once it knows of the failure. Does not wait.
  void post(Group& group, bool failed, c10::Device device, const CallOptions& call);
  // Blocks until all ranks have said it: "rank 1 (rank 3 of the world): late is a new parameter".
  [[nodiscard]] std::string finish(const Group& group);
  // Blocks for what post() has left under way.
  void settle();

 private:
  std::string text_;
  at::Tensor own_, all_;
  Work work_;
};

}  // namespace lockstep::parallel
