// Ranks of the shared-memory backend without LibTorch: as threads with an endpoint each, or as
// forked processes.
#pragma once

#include "comm/backends/shm/endpoint.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <lockstep/store/file_store.h>
#include <lockstep/store/memory_store.h>

#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sched.h>

namespace lockstep::test {

using shm::Endpoint;
using shm::GroupMember;
using RankOnEndpoint = std::function<void(Endpoint& endpoint)>;

inline shm::EndpointOptions small_options() {
  return {.timeout = std::chrono::seconds(20),
          .join_timeout = std::chrono::seconds(20),
          .arena_bytes = 256 << 20};
}

// Runs body in `count` threads and rethrows the exception of the lowest rank. All endpoints are
// destroyed together, so that a rank that finishes early does not count as one that left.
inline void run_as_rank_threads(int count, const RankOnEndpoint& body,
                                const shm::EndpointOptions& options = small_options()) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Endpoint endpoint(store, rank, count, options);
        body(endpoint);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Returns a body for RankProcesses that creates an endpoint over a file store in `folder`.
inline RankBody on_endpoint(const TemporaryFolder& folder, int count, RankOnEndpoint body,
                            shm::EndpointOptions options = small_options()) {
  return [path = folder.path(), count, body = std::move(body), options](int rank) {
    Endpoint endpoint(std::make_shared<FileStore>(path / "store"), rank, count, options);
    body(endpoint);
  };
}

// Runs the body on one core, so that no process has a helper thread, which large operations would
// wake.
inline RankBody on_one_core(RankBody body) {
  return [body = std::move(body)](int rank) {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(sched_getcpu(), &core);
    sched_setaffinity(0, sizeof core, &core);
    body(rank);
  };
}

// An array in the arena.
template <typename T>
class ArenaArray {
 public:
  ArenaArray(Endpoint& endpoint, std::size_t count)
      : arena_(endpoint.arena()),
        data_(reinterpret_cast<T*>(arena_->allocate(count * sizeof(T)))),
        count_(count) {}
  ~ArenaArray() { arena_->free(reinterpret_cast<std::byte*>(data_)); }
  ArenaArray(const ArenaArray&) = delete;
  ArenaArray& operator=(const ArenaArray&) = delete;

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] T& operator[](std::size_t i) { return data_[i]; }

 private:
  std::shared_ptr<shm::Arena> arena_;
  T* data_;
  std::size_t count_;
};

template <typename T>
constexpr DType dtype_for() {
  if constexpr (std::is_same_v<T, float>)
    return DType::float32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::float64;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::int64;
  else
    return DType::int32;
}

template <typename Container>
shm::Buffer buffer_of(Container& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(*values.data())};
}

// A call and its buffers. post() fills in its number, and its elements from the bytes.
struct Posting : CallInfo, shm::CallBuffers {};

// A call on arrays (std::vector is staged, ArenaArray is not).
template <typename In, typename Out>
Posting call(Collective collective, In& input, Out& output, int root = 0, Op op = Op::sum,
             std::source_location where = std::source_location::current()) {
  using T = std::remove_cvref_t<decltype(*input.data())>;
  Posting posting;
  posting.collective = collective;
  posting.op = op;
  posting.root = root;
  posting.dtype = dtype_for<T>();
  posting.input = buffer_of(input);
  posting.output = buffer_of(output);
  posting.timeout = std::chrono::seconds(20);
  posting.where = where;
  return posting;
}

inline Posting barrier_call(std::source_location where = std::source_location::current()) {
  Posting posting;
  posting.timeout = std::chrono::seconds(20);
  posting.where = where;
  return posting;
}

// As GroupState numbers it.
inline CallId next_id(const GroupMember& group, const CallInfo& call) {
  const auto key = channel_of(call.collective, call.root, group.rank());
  for (const auto* channel : group.channels()) {
    if (channel->name() == key) return {key, channel->posted() + 1};
  }
  return {key, 1};
}

inline CallId post(GroupMember& group, Posting posting) {
  if (posting.collective == Collective::barrier) posting.dtype.reset();
  const bool by_output = posting.collective == Collective::all_gather ||
                         posting.collective == Collective::scatter ||
                         posting.collective == Collective::recv;
  const auto bytes = by_output ? posting.output.bytes : posting.input.bytes;
  posting.elements =
      posting.dtype ? static_cast<std::int64_t>(bytes / bytes_of(*posting.dtype)) : 0;
  posting.id = next_id(group, posting);
  const auto id = posting.id;
  shm::CallBuffers& buffers = posting;
  group.post(posting, std::move(buffers));
  return id;
}
inline void run(GroupMember& group, Posting posting) {
  group.wait(post(group, std::move(posting)));
}

}  // namespace lockstep::test
