// The engine "local": ranks are threads of one process.
#pragma once

#include <lockstep/comm/backend.h>

#include "comm/engines/local/world.h"
#include "comm/rendezvous/grace_period.h"

#include <memory>

namespace lockstep::local {

class LocalBackend final : public Backend {
 public:
  // Takes place `rank` of the world; the destructor leaves it.
  LocalBackend(std::shared_ptr<World> world, int rank, int size);
  ~LocalBackend() override;

  [[nodiscard]] std::string_view name() const override { return "local"; }
  void post(const Call& call) override { world_->post(rank(), call); }
  void wait(CallId id) override { world_->wait(rank(), id); }
  [[nodiscard]] bool done(CallId id) override { return world_->done(id); }
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override;
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options,
                                             const Agree& agree) override;
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override;
  void abort(std::string_view reason) override { world_->abort(rank(), reason); }

 private:
  const rendezvous::GracePeriod grace_;
  std::shared_ptr<World> world_;
};

}  // namespace lockstep::local
