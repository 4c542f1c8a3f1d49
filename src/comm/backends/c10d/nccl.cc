#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/backends/c10d/store_adapter.h"
#include "comm/rendezvous/grace_period.h"
#include "comm/rendezvous/peer_registry.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::c10d_backend {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Connection = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

// Most operations take tens of microseconds; longer waits poll less often.
constexpr Duration shortest_pause = microseconds(5);
constexpr Duration longest_pause = microseconds(200);
constexpr Duration between_looks = milliseconds(100);
// Time limits: for the other ranks to stop using this rank's GPU, and for NCCL to end its
// operations.
constexpr Duration longest_leave = std::chrono::seconds(30);
constexpr milliseconds longest_abort = std::chrono::seconds(10);
constexpr const char* everyone = "all";  // names the communicator of the collectives

// LibTorch watches NCCL from separate threads, which end the process if an operation fails or takes
// long. Only environment variables turn these threads off. With blocking waits LibTorch does not
// start the threads: waits poll (finish()) and throw the error in the waiting thread. LibTorch's
// record of operations keeps pointers that only those threads release, so the record is off; the
// group has its own (comm/diagnose).
//
// A variable that the program has set keeps its value. Call it while init() makes the world, and
// not from threads that connect later: setenv() is not safe while other threads call getenv().
void set_missing_variables() {
  constexpr std::pair<const char*, const char*> settings[] = {
      {"TORCH_NCCL_BLOCKING_WAIT", "1"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
      {"TORCH_NCCL_ENABLE_MONITORING", "0"},
      {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
      {"TORCH_NCCL_TRACE_BUFFER_SIZE", "0"},
      {"TORCH_FR_BUFFER_SIZE", "0"},
      {"TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0"},
  };
  for (auto [name, value] : settings) c10::utils::set_env(name, value, /*overwrite=*/false);
}

std::string name_of_gpu(c10::DeviceIndex index) {
  const auto& uuid = at::cuda::getDeviceProperties(index)->uuid;
  std::string name = "GPU-";
  for (char byte : uuid.bytes) name += formatted("{:02x}", static_cast<unsigned char>(byte));
  return name;
}

// Family: the state that the NCCL groups of one process share: its GPU and the c10d groups. GPUs
// read each other's memory and ranks drop their groups in any order, so the c10d groups of a group
// exist until every rank has dropped it, and those of the world until every rank has dropped its
// last group.
class Family {
 public:
  Family(std::shared_ptr<Store> store, int rank, int size, const BackendOptions& options)
      : store_(std::move(store)),
        device_(options.device.value_or(at::kCUDA)),
        join_timeout_(options.join_timeout),
        world_(std::make_shared<rendezvous::PeerRegistry>(
            store_, "world", rank, size, options.device ? name_of_gpu(device_.index()) : "",
            options.join_timeout)) {
    std::vector<std::string> gpus;
    for (int other = 0; other < size; ++other) gpus.push_back(world_->words(other));
    check_gpus(gpus);
  }

  ~Family() {
    try {
      world_->leave();
      if (!has_failed_ && !grace_.is_by_exception()) world_->await_the_others(longest_leave);
    } catch (const std::exception&) {
      // The rank that served the store has ended, and it waits for the others before it ends.
    }
    for (const auto& connection : connections_) end(connection);
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  [[nodiscard]] const std::shared_ptr<Store>& store() const { return store_; }
  [[nodiscard]] const std::shared_ptr<const rendezvous::PeerRegistry>& world() const {
    return world_;
  }

  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] Duration join_timeout() const { return join_timeout_; }

  // The result is not connected yet.
  [[nodiscard]] Connection make(const std::string& name, int rank, int size) {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = longest_abort;
    options->group_name = name;
    auto connection = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        as_c10d_store(store_, formatted("lockstep/nccl/{}/", name), join_timeout_), rank, size,
        options);
    std::lock_guard lock(mutex_);
    connections_.push_back(connection);
    return connection;
  }

  // Call when this rank drops a group whose calls are complete. Its c10d groups end when a later
  // group is made and every rank has dropped this one.
  void drop(std::shared_ptr<const rendezvous::PeerRegistry> registry,
            std::vector<Connection> made) noexcept {
    if (has_failed_) return;
    try {
      registry->leave();
      std::lock_guard lock(mutex_);
      dropped_.push_back({std::move(registry), std::move(made)});
    } catch (const std::exception&) {
      has_failed_ = true;  // without the store, they end with the world
    }
  }

  // Ends the c10d groups of the groups that all ranks have dropped.
  void end_dropped() {
    std::vector<Dropped> dropped, kept;
    {
      std::lock_guard lock(mutex_);
      dropped.swap(dropped_);
    }
    std::vector<Connection> over;
    for (Dropped& one : dropped) {
      if (is_over(*one.registry))
        over.insert(over.end(), one.made.begin(), one.made.end());
      else
        kept.push_back(std::move(one));
    }
    {
      std::lock_guard lock(mutex_);
      std::ranges::move(kept, std::back_inserter(dropped_));
      std::erase_if(connections_, [&](const Connection& one) {
        return std::ranges::find(over, one) != over.end();
      });
    }
    for (const auto& connection : over) end(connection);
  }

  static void end(const Connection& connection) noexcept {
    try {
      connection->abort();
    } catch (const std::exception&) {
      // Already ended, or NCCL does not respond.
    }
  }
  void note_failure() { has_failed_ = true; }

 private:
  struct Dropped {
    std::shared_ptr<const rendezvous::PeerRegistry> registry;
    std::vector<Connection> made;
  };

  // If the store does not answer, the next call asks again.
  [[nodiscard]] static bool is_over(const rendezvous::PeerRegistry& registry) {
    try {
      return registry.have_all_left();
    } catch (const std::exception&) {
      return false;
    }
  }

  const rendezvous::GracePeriod grace_;
  std::shared_ptr<Store> store_;
  const at::Device device_;
  const Duration join_timeout_;
  const std::shared_ptr<const rendezvous::PeerRegistry> world_;
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  std::vector<Connection> connections_;  // guarded by mutex_
  std::vector<Dropped> dropped_;         // guarded by mutex_
};

// NCCL executes the operations of one communicator in order, and two ranks that send to each other
// have different orders. Therefore each direction of each pair of ranks has a separate
// communicator.
class NcclConnection final : public C10dConnection {
 public:
  NcclConnection(std::shared_ptr<Family> family,
                 std::shared_ptr<const rendezvous::PeerRegistry> registry, int rank, int size)
      : family_(std::move(family)), registry_(std::move(registry)), rank_(rank), size_(size) {
    connect_all();
  }
  ~NcclConnection() override {
    if (registry_ != family_->world() && !is_closing_) family_->drop(registry_, made_);
  }
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] CallRoute route_of(const PostedCall& call) override;
  [[nodiscard]] std::optional<at::Device> device() override { return family_->device(); }
  [[nodiscard]] bool has_streams() const override { return true; }
  [[nodiscard]] bool is_connected(const PostedCall& call) override;
  void check_peers() override { registry_->check_processes(); }
  [[nodiscard]] bool works_on_wholes() const override { return true; }
  void mark_next(std::uint32_t) override {}
  void finish(c10d::Work& work) override;
  void close(const std::function<bool()>& are_running) noexcept override;
  [[nodiscard]] std::shared_ptr<C10dConnection> make_group(const std::string& name, int rank,
                                                           int size, Duration timeout) override;

 private:
  // Makes the communicator of the collectives at once: during a step, it would allocate GPU memory
  // while kernels of the step wait for each other.
  void connect_all();
  // Returns the name of the communicator for a call.
  [[nodiscard]] std::string place_of(const PostedCall& call) const;
  [[nodiscard]] c10d::Backend& connected(const std::string& place, int rank, int size);

  const std::shared_ptr<Family> family_;
  const std::shared_ptr<const rendezvous::PeerRegistry> registry_;
  const int rank_;
  const int size_;
  std::atomic<bool> is_closing_{false};
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;                               // guards the members below
  std::vector<Connection> made_;                   // ended by close()
  std::map<std::string, Connection> connections_;  // by place_of() or `everyone`
};

void NcclConnection::connect_all() {
  try {
    static_cast<void>(connected(everyone, rank_, size_));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerLost(
        formatted("group {}: rank {} of {} could not connect with its peers over nccl: {}",
                  registry_->group(), rank_, size_, first_line(error.what())));
  }
}

std::string NcclConnection::place_of(const PostedCall& call) const {
  if (!is_message(call.collective)) return everyone;
  const bool sends = call.collective == Collective::send;
  return sends ? formatted("{} to {}", rank_, call.root) : formatted("{} to {}", call.root, rank_);
}

bool NcclConnection::is_connected(const PostedCall& call) {
  std::lock_guard lock(mutex_);
  return connections_.contains(place_of(call));
}

CallRoute NcclConnection::route_of(const PostedCall& call) {
  if (!is_message(call.collective)) return {connected(everyone, rank_, size_)};
  const bool sends = call.collective == Collective::send;
  return {connected(place_of(call), sends ? 0 : 1, 2), sends ? 1 : 0};
}

c10d::Backend& NcclConnection::connected(const std::string& place, int rank, int size) {
  {
    std::lock_guard lock(mutex_);
    auto found = connections_.find(place);
    if (found != connections_.end()) return *found->second;
  }
  registry_->meet(place, size, is_closing_, family_->join_timeout());
  auto connection = family_->make(formatted("{}/{}", registry_->group(), place), rank, size);
  {
    std::lock_guard lock(mutex_);
    made_.push_back(connection);
    if (is_closing_) throw Aborted("the backend is closed");
  }
  connection->eagerConnectSingleDevice(family_->device());
  std::lock_guard lock(mutex_);
  return *connections_.emplace(place, connection).first->second;
}

void NcclConnection::finish(c10d::Work& work) {
  auto pause = shortest_pause;
  auto look = Deadline::after(between_looks);
  while (!work.isCompleted()) {
    if (is_closed_) throw Aborted("the backend is closed");
    if (look.passed()) {
      registry_->check_processes();
      look = Deadline::after(between_looks);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, longest_pause);
  }
  if (is_closing_) throw Aborted("the backend is closed");
  if (auto error = work.exception()) std::rethrow_exception(error);
  work.synchronize();
}

void NcclConnection::close(const std::function<bool()>&) noexcept {
  family_->note_failure();
  std::vector<Connection> made;
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
    made = made_;
  }
  for (const auto& connection : made) Family::end(connection);
  is_closed_ = true;
}

std::shared_ptr<C10dConnection> NcclConnection::make_group(const std::string& name, int rank,
                                                           int size, Duration timeout) {
  family_->end_dropped();
  auto registry =
      std::make_shared<rendezvous::PeerRegistry>(family_->store(), name, rank, size, "", timeout);
  return std::make_shared<NcclConnection>(family_, std::move(registry), rank, size);
}

}  // namespace

bool has_nccl() { return true; }

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (c10::DeviceIndex index = 0; index < c10::cuda::device_count(); ++index)
    names.push_back(name_of_gpu(index));
  return names;
}

std::shared_ptr<C10dConnection> make_nccl(const std::shared_ptr<Store>& store, int rank, int size,
                                          const BackendOptions& options) {
  set_missing_variables();
  auto family = std::make_shared<Family>(store, rank, size, options);
  return std::make_shared<NcclConnection>(family, family->world(), rank, size);
}

}  // namespace lockstep::c10d_backend
