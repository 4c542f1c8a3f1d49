#include "comm/init/run_store.h"

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>
#include <lockstep/store/secret.h>
#include <lockstep/store/store_server.h>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/backends/c10d/store_adapter.h"
#include "comm/backends/mpi/bootstrap_store.h"
#include "comm/rendezvous/meeting.h"
#include "sys/file_descriptor.h"
#include "sys/socket_address.h"
#include "sys/sockets.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<Store> open_c10d(const rank_env::RankInfo& info, Deadline deadline) {
  const auto& at = *info.rendezvous;
  bool serves = at.kind == rank_env::RankRendezvous::Kind::rank_0 && info.rank == 0;
  const MasterAddress master(at.host, at.port, deadline);
  std::string_view listener = at.kind == rank_env::RankRendezvous::Kind::rank_0
                                  ? "rank 0, which listens there,"
                                  : "torchrun's store";
  if (serves)
    master.check_own();
  else
    master.wait_for_store(info.rank, listener, deadline);
  c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = serves;
  options.waitWorkers = false;
  options.multiTenant = true;  // a second group may need the port while the first still holds it
  options.timeout = std::max(
      milliseconds(100), std::min<milliseconds>(std::chrono::ceil<milliseconds>(deadline.left()),
                                                std::chrono::hours(24)));
  try {
    return c10d_backend::as_store(c10::make_intrusive<c10d::TCPStore>(master.host(), options));
  } catch (const std::exception& error) {
    if (serves)
      throw BadInput(formatted("rank 0 cannot listen at MASTER_ADDR:MASTER_PORT, {}: {}",
                               master.text(), first_line(error.what())));
    throw Timeout(formatted(
        "rank {} timed out connecting to MASTER_ADDR:MASTER_PORT, {}: {} did not arrive ({})",
        info.rank, master.text(), listener, first_line(error.what())));
  }
}

std::string secret_of(const rank_env::RankRendezvous& at) {
  if (at.port == 0) return {};
  auto secret = rank_env::read_secret();
  return secret.empty() ? user_secret() : secret;
}

StoreServerOptions server_options(const rank_env::RankRendezvous& at, std::string secret) {
  if (at.port == 0) return {.host = at.address.substr(std::string_view("unix:").size())};
  // The host's own name is often a loopback address, so listen on all addresses; the secret keeps
  // others out.
  return {.host = sys::all_addresses(), .port = at.port, .secret = std::move(secret)};
}

// Returns the server of this process. A process can listen at an address only once, so a second
// group that is made while the first exists shares the server.
std::shared_ptr<StoreServer> serve(const rank_env::RankRendezvous& at, const std::string& secret) {
  static std::mutex mutex;
  static std::weak_ptr<StoreServer> served;
  static std::string address;
  static pid_t process = 0;  // a forked child has no server thread
  std::lock_guard lock(mutex);
  auto server = process == ::getpid() && address == at.address ? served.lock() : nullptr;
  if (server) return server;
  server = std::make_shared<StoreServer>(server_options(at, secret));
  served = server;
  address = at.address;
  process = ::getpid();
  return server;
}

// For a rendezvous of kind served_store. Rank 0 serves the store as long as it holds a pointer from
// this function; the other ranks wait for the server until the deadline. Over TCP, the secret is
// read from LOCKSTEP_SECRET_FILE, else it is the user's own (user_secret()); on one host, the
// kernel authenticates the peer.
std::shared_ptr<Store> open_served_store(const rank_env::RankInfo& info, Deadline deadline) {
  const rank_env::RankRendezvous& at = *info.rendezvous;
  auto secret = secret_of(at);
  if (info.rank == 0) {
    auto server = serve(at, secret);
    auto own = at.port == 0 ? at.address : formatted("tcp://127.0.0.1:{}", at.port);
    return rendezvous::keep_serving(server, open_store(own, secret, deadline.left()));
  }
  try {
    return open_store(at.address, secret, deadline.left());
  } catch (const Timeout& error) {
    throw Timeout(
        formatted("rank {} timed out connecting to {}: rank 0, which serves the store there, did "
                  "not arrive ({})",
                  info.rank, at.address, error.what()));
  }
}

}  // namespace

std::shared_ptr<Store> open_run_store(const rank_env::RankInfo& info, Deadline deadline) {
  using Kind = rank_env::RankRendezvous::Kind;
  switch (info.rendezvous->kind) {
    case Kind::lockstep_store:
      return open_store(info.rendezvous->address, rank_env::read_secret(), deadline.left());
    case Kind::served_store:
      return open_served_store(info, deadline);
    case Kind::agent_store:
    case Kind::rank_0:
      return open_c10d(info, deadline);
    case Kind::mpi:
      return mpi::open_mpi_store(deadline);
  }
  throw BadInput("init: unknown kind of rendezvous");
}

namespace {

using namespace std::chrono_literals;

constexpr auto until_notice = 5s;
constexpr auto between_attempts = 200ms;
constexpr auto shortest_attempt = 100ms;  // also at the deadline: a server needs time to answer
constexpr int silent_attempts = 6;        // of until_notice

// Checks an address by calling `use` on a datagram socket, which sends nothing. Returns 0, or the
// errno if the address cannot be used.
int error_of(const sys::SocketAddress& address, decltype(&::connect) use) {
  const sys::FileDescriptor socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  return use(socket.get(), address.get(), address.size()) == 0 ? 0 : errno;
}

enum class Listener { store, absent, closes, is_silent, other };

// Asks as c10d's client does: VALIDATE and a constant, then PING and a number, which the store
// returns (TCPStoreBackend.hpp of LibTorch 2.11 to 2.15).
Listener listener_at(const sys::SocketAddress& address, Deadline deadline) {
  constexpr std::uint8_t validate = 0, ping = 13;
  constexpr std::uint32_t constant = 0x3C85F7CE, number = 0x6C6F636B;
  const auto socket = sys::try_connect(address, deadline);
  if (!socket) return Listener::absent;
  std::array<std::byte, 2 * (1 + sizeof constant)> question{std::byte{validate}};
  std::memcpy(&question[1], &constant, sizeof constant);
  question[1 + sizeof constant] = std::byte{ping};
  std::memcpy(&question[2 + sizeof constant], &number, sizeof number);
  std::uint32_t answer = 0;
  try {
    sys::send_all(socket.get(), question, deadline);
    sys::receive_exact(socket.get(), std::as_writable_bytes(std::span(&answer, 1)), deadline);
  } catch (const Timeout&) {
    return Listener::is_silent;
  } catch (const PeerLost&) {
    return Listener::closes;
  }
  return answer == number ? Listener::store : Listener::other;
}

}  // namespace

MasterAddress::MasterAddress(const std::string& host, std::uint16_t port, Deadline deadline)
    : host_(host), text_(formatted("{}:{}", host, port)) {
  if (host_.starts_with('[') && host_.ends_with(']')) host_ = host_.substr(1, host_.size() - 2);
  try {
    addresses_ = sys::SocketAddress::all_tcp(host_, port, deadline);
  } catch (const BadInput& error) {
    throw BadInput(formatted("MASTER_ADDR: {}", error.what()));
  }
}

void MasterAddress::check_own() const {
  const auto error_of_connecting = [](const auto& one) { return error_of(one, ::connect); };
  if (std::ranges::find(addresses_, 0, error_of_connecting) == addresses_.end()) {
    const auto& first = addresses_.front();
    throw BadInput(formatted("rank 0: MASTER_ADDR cannot be reached: connecting to {}{}: {}",
                             first.text(),
                             first.is_loopback() ? " (is the loopback interface up?)" : "",
                             std::generic_category().message(error_of_connecting(first))));
  }
  const auto is_own = [](const auto& one) { return error_of(one, ::bind) != EADDRNOTAVAIL; };
  if (std::ranges::none_of(addresses_, is_own))
    log::warning("rank 0 is to listen at MASTER_ADDR, {}, which is not an address of this host",
                 host_);
}

void MasterAddress::wait_for_store(int rank, std::string_view listener, Deadline deadline) const {
  auto notice = Deadline::after(until_notice);
  for (int silent = 0;;) {
    const auto soon = std::clamp<Duration>(deadline.left(), shortest_attempt, until_notice);
    std::string problem, found;
    bool may_come = false;  // the store may still appear at an address
    for (const auto& address : addresses_) {
      try {
        switch (listener_at(address, Deadline::after(soon))) {
          case Listener::store:
            return;
          case Listener::other:
            found = "; another server answers there";
            problem = formatted(
                "MASTER_ADDR:MASTER_PORT, {}: expected the store of the run, found "
                "another server",
                text_);
            break;
          case Listener::is_silent:
            may_come = true;
            found = "; a server there takes connections and does not answer";
            if (++silent == silent_attempts)
              throw Timeout(
                  formatted("rank {}: MASTER_ADDR:MASTER_PORT, {}: expected the store of "
                            "the run{}",
                            rank, text_, found));
            break;
          case Listener::closes:
            may_come = true;
            found = "; a server there closes the connection";
            break;
          case Listener::absent:
            may_come = true;
        }
      } catch (const SystemError& error) {
        problem = formatted("MASTER_ADDR cannot be reached: {}", error.what());
      }
    }
    if (!may_come) throw BadInput(formatted("rank {}: {}", rank, problem));
    if (deadline.passed())
      throw Timeout(formatted(
          "rank {} timed out connecting to MASTER_ADDR:MASTER_PORT, {}: {} did not arrive{}", rank,
          text_, listener, found));
    if (notice.passed()) {
      notice = Deadline::never();
      log::warning("rank {} waits at MASTER_ADDR:MASTER_PORT, {}: {} is not there yet{}", rank,
                   text_, listener, found);
    }
    std::this_thread::sleep_for(std::min<Duration>(between_attempts, deadline.left()));
  }
}

}  // namespace lockstep
