// A Backend that notes every call of another one in a flight recorder, and writes the record when
// the group fails. It changes nothing else: tickets, errors and memory are the other's.
#pragma once

#include <lockstep/comm/backend.h>

#include "comm/diagnose/flight_recorder.h"
#include "comm/rendezvous/grace_period.h"

#include <memory>
#include <string>
#include <vector>

namespace lockstep::flight {

class RecordedBackend final : public Backend {
 public:
  RecordedBackend(std::shared_ptr<Backend> backend, std::shared_ptr<Recorder> recorder,
                  std::string group, std::vector<int> members);
  // Also leaves a record where an exception takes this rank away from the others.
  ~RecordedBackend() override;

  [[nodiscard]] std::string_view name() const override { return backend_->name(); }
  std::uint64_t post(const Call& call) override;
  void wait(std::uint64_t ticket) override;
  [[nodiscard]] bool done(std::uint64_t ticket) override { return backend_->done(ticket); }
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override {
    return backend_->empty_shared(sizes, options);
  }
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override;
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options, Duration timeout,
                                             std::source_location where) override;
  void abort(std::string_view reason) override { backend_->abort(reason); }

  [[nodiscard]] Recorder& recorder() const { return *recorder_; }

 private:
  // Of the calls that are numbered together with this one: the collectives, or the messages of this
  // pair in this direction.
  [[nodiscard]] std::uint64_t& count_of(const Call& call);

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<Recorder> recorder_;
  const std::vector<int> members_;
  const std::uint32_t group_;
  const rendezvous::GracePeriod grace_;
  std::vector<std::uint64_t> counts_;  // collectives, sends to each rank, receives from each rank
};

// The world of a rank, recorded. The file goes into the folder that LOCKSTEP_FLIGHT names.
[[nodiscard]] std::shared_ptr<Backend> recorded(std::shared_ptr<Backend> world);

}  // namespace lockstep::flight
