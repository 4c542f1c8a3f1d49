#include "comm/backends/c10d/make.h"

#include "comm/backend/blocking_backend.h"
#include "comm/backends/c10d/backend.h"
#include "sys/own_process.h"

#include <utility>

namespace lockstep::c10d_backend {
namespace {

std::shared_ptr<C10dConnection> make_connection(std::string_view name,
                                                const std::shared_ptr<Store>& store, int rank,
                                                int size, const Options& options) {
  if (options.custom)
    return make_custom(options.custom, std::string(name),
                       options.custom_streams ? options.device : std::nullopt, store, "world", rank,
                       size, options.join_timeout);
  if (name == "gloo")
    return make_gloo(store, "world", rank, size,
                     {.address = options.address, .join_timeout = options.join_timeout});
  return make_nccl(store, rank, size,
                   {.device = options.device, .join_timeout = options.join_timeout});
}

}  // namespace

std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store, int rank,
                              int size, const Options& options) {
  auto connection = make_connection(name, store, rank, size, options);
  auto make_on_host = [store, address = options.address](const std::string& group, int own, int all,
                                                         Duration timeout) {
    return make_gloo(store, group, own, all, {.address = address, .join_timeout = timeout});
  };
  auto runner = std::make_shared<C10dBackend>(
      std::move(connection), rank, size,
      RunnerOptions{.float_sums = options.float_sums, .make_on_host = std::move(make_on_host)});
  return sys::make_shared_of_process<BlockingBackend>(
      std::move(runner), std::move(store), GroupNames(), rank, size, options.join_timeout);
}

}  // namespace lockstep::c10d_backend
