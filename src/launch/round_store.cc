#include "launch/round_store.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "launch/environment.h"
#include "sys/random_bytes.h"

#include <lockstep/base/error.h>
#include <lockstep/store/secret.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lockstep::launch {

sys::HostPort endpoint_of(const NodeSpec& spec) {
  const bool apart = !spec.store.empty();
  const char* option = apart ? "--store" : "--rendezvous";
  const std::string& text = apart ? spec.store : spec.rendezvous;
  auto at = sys::parse_host_port(text);
  check_input(at && at->port > 0, "{}: expected HOST:PORT, found '{}'", option, text);
  check_input(at->host != "0.0.0.0" && at->host != "::",
              "{}: expected an address that the other nodes can reach, found {}", option, at->host);
  return *std::move(at);
}

namespace {

// A host's own name often resolves to a loopback address on that host (Debian: 127.0.1.1), which no
// other host could reach.
std::string listen_host(const std::string& host, Deadline deadline) {
  const bool everywhere =
      !sys::is_loopback_name(host) && sys::SocketAddress::tcp(host, 0, deadline).is_loopback();
  return everywhere ? sys::all_addresses() : host;
}

// Returns the content of --secret-file, or the user's own secret if the address is loopback.
std::string secret_of_agents(const NodeSpec& spec, const sys::HostPort& at) {
  if (!spec.secret_file.empty()) return read_secret_file(spec.secret_file);
  check_input(sys::is_loopback_name(at.host),
              "--secret-file is missing: agents that meet at {} over a network need a secret (any "
              "file of 16 bytes or more with mode 600, the same on all nodes)",
              at.text());
  return user_secret();
}

// Serves the store from this process.
std::unique_ptr<StoreServer> serve_agents(const NodeSpec& spec, const sys::HostPort& at,
                                          const std::string& secret, Deadline deadline) {
  try {
    return std::make_unique<StoreServer>(StoreServerOptions{.host = listen_host(at.host, deadline),
                                                            .port = at.port,
                                                            .secret = secret,
                                                            .lost_after = spec.lost_after});
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRNOTAVAIL) throw;
    throw BadInput(formatted("node 0 serves the store at {}, which is not an address of this host",
                             at.text()));
  }
}

// Returns how long to wait for a lost store: only a separately served store may be restarted.
Duration time_to_reconnect(const NodeSpec& spec) {
  return spec.store.empty() ? Duration::zero() : spec.join_timeout;
}

// Blocks until the server answers or the deadline passes. Error messages call this side `self`
// ("node 1") and the other side `server` ("node 0").
std::shared_ptr<TcpStore> come_to_store(const NodeSpec& spec, const sys::HostPort& at,
                                        const std::string& secret, Deadline deadline,
                                        const std::string& self, const std::string& server) {
  try {
    return std::make_shared<TcpStore>(TcpStoreOptions{.host = at.host,
                                                      .port = at.port,
                                                      .secret = secret,
                                                      .connect_timeout = deadline.left(),
                                                      .call_timeout = spec.lost_after,
                                                      .reconnect = time_to_reconnect(spec),
                                                      .lost_after = spec.lost_after});
  } catch (const Timeout& error) {
    throw Timeout(formatted("{} timed out after {} waiting for {} at {} ({})", self,
                            format_duration(spec.join_timeout), server, at.text(), error.what()));
  } catch (const BadInput& error) {
    throw BadInput(formatted("{} cannot join: {}", self, error.what()));
  }
}

}  // namespace

RoundStore serve_store() {
  RoundStore served;
  served.secret = sys::random_bytes(rank_env::secret_bytes);
  served.run_id = fresh_run_id();
  served.server = std::make_unique<StoreServer>(StoreServerOptions{.secret = served.secret});
  served.address = "tcp://" + served.server->address();
  return served;
}

RoundStore open_round_store(const NodeSpec& nodes, Deadline join_deadline) {
  const bool apart = !nodes.store.empty();
  if (!apart && nodes.nodes == 1) {
    RoundStore served = serve_store();
    served.store = std::make_shared<TcpStore>(
        TcpStoreOptions{.port = served.server->port(), .secret = served.secret});
    return served;
  }
  RoundStore opened;
  const sys::HostPort at = endpoint_of(nodes);
  opened.secret = secret_of_agents(nodes, at);
  if (!apart && nodes.node == 0)
    opened.server = serve_agents(nodes, at, opened.secret, join_deadline);
  const std::string self =
      nodes.node < nodes.nodes ? formatted("node {}", nodes.node) : std::string("this node");
  opened.store =
      come_to_store(nodes, at, opened.secret, join_deadline, self, apart ? "the store" : "node 0");
  opened.address = "tcp://" + at.text();
  if (apart) opened.address += "?reconnect=" + format_duration(time_to_reconnect(nodes));
  return opened;
}

sys::FileDescriptor RoundStore::secret_descriptor() const {
  check(secret.size() == rank_env::secret_bytes, "the store's secret: expected {} bytes, found {}",
        rank_env::secret_bytes, secret.size());
  const sys::FileDescriptor file(
      ::memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw SystemError("making a memory file for the store's secret", errno);
  if (::fchmod(file.get(), 0400) != 0 ||
      ::pwrite(file.get(), secret.data(), secret.size(), 0) !=
          static_cast<ssize_t>(secret.size()) ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) !=
          0)
    throw SystemError("writing the store's secret", errno);
  return sys::with_high_number(file);
}

std::string fresh_run_id() { return "lockstep-" + sys::hexadecimal(sys::random_bytes(8)); }

int free_port() {
  for (const char* everywhere : {"::", "0.0.0.0"}) {  // "::" includes IPv4 by default
    const auto address = sys::SocketAddress::tcp(everywhere, 0);
    const sys::FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket && ::bind(socket.get(), address.get(), address.size()) == 0)
      return sys::SocketAddress::local(socket.get()).port();
  }
  throw SystemError("looking for a free port", errno);
}

}  // namespace lockstep::launch
