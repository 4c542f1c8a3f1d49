#include "comm/backends/shm/backend.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/backend/tensors.h"
#include "comm/backends/shm/endpoint.h"
#include "comm/backends/shm/tensor_allocator.h"
#include "comm/rendezvous/grace_period.h"
#include "sys/heap.h"
#include "sys/own_process.h"
#include "sys/topology.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstring>
#include <exception>
#include <string>
#include <utility>

namespace lockstep::shm {
namespace {

[[noreturn]] void refuse_device(const at::Tensor& tensor) {
  throw InvalidArgument(
      formatted("shm: expected a tensor in host memory, found one on {}", tensor.device().str()));
}

Buffer buffer_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (!tensor.is_cpu()) refuse_device(tensor);
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()),
          static_cast<std::size_t>(tensor.nbytes())};
}

// Returns the buffer of an input. The input is only read, so a copy-on-write tensor is not copied.
Buffer buffer_to_read(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (!tensor.is_cpu()) refuse_device(tensor);
  auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {const_cast<std::byte*>(data), static_cast<std::size_t>(tensor.nbytes())};
}

Buffer memory_of(void* kept) {
  auto* storage = static_cast<c10::StorageImpl*>(kept);
  return {static_cast<std::byte*>(storage->data_ptr().get()), storage->nbytes()};
}

// Gives the storage new memory, which all tensors on it use from then on.
bool renew_memory(void* kept) {
  auto* storage = static_cast<c10::StorageImpl*>(kept);
  try {
    auto fresh = c10::GetAllocator(c10::kCPU)->allocate(storage->nbytes());
    std::memcpy(fresh.get(), storage->data_ptr().get(), storage->nbytes());
    storage->set_data_ptr(std::move(fresh)).release_context();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

constexpr Renewal storage_renewal{memory_of, renew_memory};

// Keeps the storage instead of the tensor, because the owner may give the tensor another storage.
KeepAlive keep(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(storage);
  auto release = [](void* kept) {
    c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(kept));
  };
  return {storage, release, &storage_renewal};
}

template <typename Release>
at::Tensor tensor_at(std::byte* block, at::IntArrayRef sizes, const at::TensorOptions& options,
                     Release release) {
  auto tensor = at::from_blob(block, sizes, std::move(release),
                              at::TensorOptions().dtype(options.dtype()).device(at::kCPU));
  return options.requires_grad() ? tensor.requires_grad_() : tensor;
}

// If the system does not overcommit memory, pages of a tensor are allocated at once: if a page
// cannot be allocated when it is touched, the process ends by SIGBUS.
ArenaTensors::Pages pages_of_tensors() {
  return sys::overcommits_memory() ? ArenaTensors::Pages::when_touched
                                   : ArenaTensors::Pages::at_once;
}

// The state that the backends of one world share. During its lifetime, tensors are made in the
// arena.
struct Ends {
  Ends(std::shared_ptr<Store> store, int rank, int size, EndpointOptions options,
       std::size_t for_tensors)
      : endpoint(std::move(store), rank, size, options) {
    if (for_tensors > 0) tensors.emplace(endpoint.arena(), for_tensors, pages_of_tensors());
  }

  Endpoint endpoint;
  std::optional<ArenaTensors> tensors;
};

class ShmBackend : public Backend {
 public:
  ShmBackend(std::shared_ptr<Ends> ends, GroupMember& group)
      : Backend(group.rank(), group.size()),
        ends_(std::move(ends)),
        endpoint_(&ends_->endpoint),
        group_(group) {}
  ~ShmBackend() override { endpoint_->leave(group_, grace_.is_by_exception()); }

  [[nodiscard]] std::string_view name() const override { return "shm"; }

  void post(const Call& call) override {
    bool in_place = call.output.is_same(call.input);
    auto input = in_place ? buffer_of(call.input) : buffer_to_read(call.input);
    group_.post(call, {.input = input,
                       .output = in_place ? input : buffer_of(call.output),
                       .keep_input = keep(call.input),
                       .keep_output = in_place ? KeepAlive() : keep(call.output)});
  }

  void wait(CallId id) override { group_.wait(id); }
  [[nodiscard]] bool done(CallId id) override { return group_.done(id); }

  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override {
    auto arena = endpoint_->arena();
    auto* block = arena->allocate(host_bytes("empty_shared", sizes, options));
    return tensor_at(block, sizes, options, [arena, block](void*) { arena->free(block); });
  }

  // The group's first rank allocates the memory and sends its location to the other ranks.
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options,
                                             const Agree& agree) override {
    auto bytes = host_bytes("empty_node_shared", sizes, options);
    auto tag = node_shared_tag(sizes, options);
    int owner = group_.members().front();
    const auto& peers = endpoint_->peers();
    auto offset = at::full({1}, -1, at::kLong);
    std::byte* own = nullptr;
    std::exception_ptr no_room;
    if (rank() == 0) {
      try {
        own = endpoint_->arena()->allocate_held(bytes, 1, size() - 1);
        offset.fill_(own - peers.base(owner));
      } catch (const BadInput&) {
        no_room = std::current_exception();
      }
    }
    try {
      agree({{.collective = Collective::broadcast, .root = 0, .tag = tag}, offset, offset});
    } catch (...) {
      if (own) endpoint_->give_up(group_, own);
      throw;
    }
    if (no_room) std::rethrow_exception(no_room);
    check_input(offset.item<std::int64_t>() >= 0,
                "empty_node_shared: {} do not fit into the arena of the group's first rank, whose "
                "error says more",
                format_bytes(static_cast<std::int64_t>(bytes)));
    auto* block = peers.base(owner) + offset.item<std::int64_t>();
    if (!own) Arena::take(block);
    return tensor_at(block, sizes, options,
                     [mapping = peers.mapping(owner), block, process = sys::ForkAware()](void*) {
                       if (!process.is_copy_of_parent()) Arena::release_hold(block);
                     });
  }

  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override {
    std::vector<int> members;
    for (int rank : ranks) members.push_back(group_.members().at(rank));
    auto& group = endpoint_->make_group(std::string(name), std::move(members));
    return sys::make_shared_of_process<ShmBackend>(ends_, group);
  }

  void abort(std::string_view reason) override {
    group_.fail(FailureKind::aborted, diagnose::aborted_sentence(rank(), reason, group_.names()));
  }

 private:
  const rendezvous::GracePeriod grace_;
  const std::shared_ptr<Ends> ends_;
  Endpoint* const endpoint_;
  GroupMember& group_;
};

}  // namespace

std::shared_ptr<Backend> make(std::string_view /*name*/, std::shared_ptr<Store> store, int rank,
                              int size, const BackendOptions& options) {
  std::optional<std::int64_t> asked;
  if (options.arena_bytes != 0) asked = options.arena_bytes;
  std::string_view origin = asked ? "arena_bytes" : "LOCKSTEP_ARENA";
  if (!asked) asked = environment::bytes("LOCKSTEP_ARENA");
  auto bytes = arena_bytes(asked, origin, size);
  // A sanitizer would not detect uses of freed tensors in the arena.
  bool has_tensors = options.arena_tensors.value_or(
      environment::flag("LOCKSTEP_ARENA_TENSORS").value_or(!sys::malloc_is_watched));
  std::size_t for_tensors =
      has_tensors && ArenaTensors::are_possible() ? bytes_for_tensors(bytes, size) : 0;
  auto ends = std::make_shared<Ends>(std::move(store), rank, size,
                                     EndpointOptions{.timeout = options.timeout,
                                                     .join_timeout = options.join_timeout,
                                                     .world_ranks = options.world_ranks,
                                                     .arena_bytes = bytes + for_tensors},
                                     for_tensors);
  auto& world = ends->endpoint.world();
  return sys::make_shared_of_process<ShmBackend>(ends, world);
}

}  // namespace lockstep::shm
