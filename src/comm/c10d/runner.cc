#include "comm/c10d/runner.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace lockstep::c10d_engine {

void C10dRunner::run(const PostedCall& call) {
  Launcher(*engine_, launches_, rank_, size_).run(call);
}

void C10dRunner::close(std::string_view) noexcept {
  std::lock_guard lock(launches_.mutex);
  launches_.closed = true;
  engine_->close([this] { return launches_.running > 0; });
}

at::Tensor C10dRunner::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

std::shared_ptr<lanes::Runner> C10dRunner::subset(std::span<const int> ranks,
                                                  const std::string& name, int rank,
                                                  Duration timeout) {
  auto size = static_cast<int>(ranks.size());
  return std::make_shared<C10dRunner>(engine_->make_group(name, rank, size, timeout), rank, size);
}

}  // namespace lockstep::c10d_engine
