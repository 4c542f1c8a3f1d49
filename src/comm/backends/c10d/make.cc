#include "comm/backends/c10d/make.h"

#include "comm/backend/blocking_backend.h"
#include "comm/backends/c10d/backend.h"
#include "sys/own_process.h"

#include <utility>

namespace lockstep::c10d_backend {
namespace {

std::shared_ptr<C10dConnection> make_connection(std::string_view name,
                                                const std::shared_ptr<Store>& store, int rank,
                                                int size, const BackendOptions& options) {
  if (options.c10d) return make_custom(std::string(name), store, "world", rank, size, options);
  if (name == "gloo") return make_gloo(store, "world", rank, size, options);
  return make_nccl(store, rank, size, options);
}

}  // namespace

std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store, int rank,
                              int size, const BackendOptions& options) {
  auto runner = std::make_shared<C10dBackend>(make_connection(name, store, rank, size, options),
                                              store, rank, size, options);
  return sys::make_shared_of_process<BlockingBackend>(
      std::move(runner), std::move(store), GroupNames(), rank, size, options.join_timeout);
}

}  // namespace lockstep::c10d_backend
