// The engine "mpi": ranks that mpirun started, over OpenMPI or MPICH.
//
// MPI is only the messenger: collectives are plans (plan.h) of messages between two ranks, so that
// a deadline can end them, groups cost nothing, calls that differ are found, and sums have the bits
// of the other engines. One thread of the process (progress_thread.h) makes all calls of MPI.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/engines/mpi/member.h"

#include <memory>

namespace lockstep::mpi {

class MpiBackend final : public Backend {
 public:
  // Keeps `store`, which this rank may be serving to the others; none is needed.
  MpiBackend(ProgressThread& progress, std::shared_ptr<Member> member,
             std::shared_ptr<Store> store);
  ~MpiBackend() override;

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  void post(const Call& call) override;
  void wait(CallId id) override { member_->wait(id); }
  [[nodiscard]] bool done(CallId id) override { return member_->done(id); }
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override;
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override;
  void abort(std::string_view reason) override { member_->abort(reason); }

 private:
  const rendezvous::GracePeriod grace_;
  ProgressThread& progress_;
  std::shared_ptr<Member> member_;
  std::shared_ptr<Store> store_;
};

// Whether some implementation's plug-in is there.
[[nodiscard]] bool has_mpi();

// The world of `size` ranks, which tell each other in the store which rank of MPI's world they are.
// Blocks until all have come. BadInput where mpirun started fewer processes, or there is no MPI;
// Timeout when they do not come.
[[nodiscard]] std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, int size,
                                            Duration join_timeout);

}  // namespace lockstep::mpi
