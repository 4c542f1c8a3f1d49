#include "comm/engines/mpi/bootstrap_store.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/call/all_ranks.h"
#include "comm/engines/mpi/backend.h"
#include "comm/rendezvous/served_store.h"
#include "sys/own_process.h"
#include "sys/socket_address.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::mpi {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t secret_bytes = 32;
// For one of several addresses; an unreachable one may swallow what is sent to it.
constexpr Duration bootstrap_timeout = 3s;

std::string new_secret() {
  std::random_device random;
  std::string secret(secret_bytes, '\0');
  std::ranges::generate(secret, [&] { return static_cast<char>(random()); });
  return secret;
}

// All ranks of MPI's world; no store is needed for it.
Group everybody(ProgressThread& progress, Duration timeout) {
  auto id = fingerprint_of(fingerprint("a meeting of everybody"), progress.next_bootstrap());
  auto member = std::make_shared<Member>(progress, GroupNames("mpirun"), id,
                                         all_ranks(progress.size()), progress.rank());
  auto backend = sys::make_shared_of_process<MpiBackend>(progress, std::move(member), nullptr);
  return {std::move(backend), "mpirun", timeout};
}

std::string tell_all(Group& group, const std::string& mine) {
  auto length = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  group.broadcast(length).wait();
  auto bytes = at::empty({length.item<std::int64_t>()}, at::kByte);
  if (group.is_root()) std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  group.broadcast(bytes).wait();
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

std::shared_ptr<Store> connect(const std::string& invitation, Deadline deadline) {
  TcpStoreOptions options{.secret = invitation.substr(0, secret_bytes)};
  std::istringstream words(invitation.substr(secret_bytes));
  words >> options.port;
  std::string tried;
  for (std::string address; words >> address;) {
    options.host = address;
    options.connect_timeout = std::min(bootstrap_timeout, deadline.left());
    try {
      return std::make_shared<TcpStore>(options);
    } catch (const Timeout& error) {
      tried += formatted("{}{}", tried.empty() ? "" : "; ", error.what());
    } catch (const SystemError& error) {
      tried += formatted("{}{}", tried.empty() ? "" : "; ", error.what());
    }
  }
  throw Timeout(formatted("none of the addresses of mpirun's rank 0 answers: {}", tried));
}

}  // namespace

std::shared_ptr<Store> open_mpi_store(Deadline deadline) {
  auto& progress = ProgressThread::open();
  auto group = everybody(progress, deadline.left());
  if (!group.is_root()) return connect(tell_all(group, {}), deadline);
  auto secret = new_secret();
  auto server =
      std::make_shared<StoreServer>(StoreServerOptions{.host = "0.0.0.0", .secret = secret});
  auto addresses = listed(sys::own_addresses(), " ");
  tell_all(group, formatted("{}{} {}", secret, server->port(), addresses));
  TcpStoreOptions own{.port = server->port(), .secret = secret};
  return rendezvous::keep_serving(std::move(server), std::make_shared<TcpStore>(own));
}

}  // namespace lockstep::mpi
