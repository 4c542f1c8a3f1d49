#include "comm/engines/local/backend.h"

#include "comm/backend/node_shared.h"
#include "sys/own_process.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace lockstep::local {

LocalBackend::LocalBackend(std::shared_ptr<World> world, int rank, int size)
    : Backend(rank, size), world_(std::move(world)) {}

LocalBackend::~LocalBackend() { world_->leave(rank(), grace_.is_by_exception()); }

at::Tensor LocalBackend::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

at::Tensor LocalBackend::empty_node_shared(at::IntArrayRef sizes, const at::TensorOptions& options,
                                           const Agree& agree) {
  (void)host_bytes("empty_node_shared", sizes, options);
  auto tag = node_shared_tag(sizes, options);
  agree({{.collective = Collective::barrier, .tag = tag}});  // all ranks want the same
  return world_->node_shared(rank(), [&] { return at::empty(sizes, options); });
}

std::shared_ptr<Backend> LocalBackend::subset(std::span<const int> ranks, std::string_view name) {
  auto world = world_->child(rank(), ranks, name);
  auto place = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  return sys::make_shared_of_process<LocalBackend>(std::move(world), place,
                                                   static_cast<int>(ranks.size()));
}

}  // namespace lockstep::local
