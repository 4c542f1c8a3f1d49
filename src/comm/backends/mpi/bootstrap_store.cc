#include "comm/backends/mpi/bootstrap_store.h"

#include <lockstep/base/error.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/backends/mpi/progress_thread.h"
#include "comm/rendezvous/meeting.h"
#include "sys/random_bytes.h"
#include "sys/socket_address.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <span>
#include <sstream>
#include <string>
#include <utility>

namespace lockstep::mpi {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t secret_bytes = 32;
// Time limit per address; packets to an unreachable address may be dropped silently.
constexpr Duration bootstrap_timeout = 3s;

// Receives the text that rank 0 of MPI's world sends to all other ranks.
class Invitation final : public MessageHandler {
 public:
  explicit Invitation(ProgressThread& progress) : progress_(progress) {}

  [[nodiscard]] std::future<std::string> text() { return text_->get_future(); }

  void arrived(Arrival arrival) override {
    if (std::exchange(is_decided_, true)) return progress_.discard(arrival);
    auto text = std::make_shared<std::string>(arrival.header.bytes, '\0');
    auto* to = reinterpret_cast<std::byte*>(text->data());
    progress_.fetch(arrival, to, text, [told = text_, text] { told->set_value(*text); });
  }
  void lost(int from, const std::string& how) override {
    if (from > 0 || std::exchange(is_decided_, true)) return;
    text_->set_exception(std::make_exception_ptr(
        PeerLost(formatted("mpirun's rank 0, which serves the store, was lost: {}", how))));
  }

 private:
  ProgressThread& progress_;
  bool is_decided_ = false;
  const std::shared_ptr<std::promise<std::string>> text_ =
      std::make_shared<std::promise<std::string>>();
};

void invite(ProgressThread& progress, std::uint64_t meeting, const std::string& text) {
  progress.give([&progress, meeting, text = std::make_shared<const std::string>(text)] {
    for (int rank = 1; rank < progress.size(); ++rank)
      progress.send(rank, {.group = meeting}, std::as_bytes(std::span(*text)), text, nullptr);
  });
}

std::string await_invitation(ProgressThread& progress, std::uint64_t meeting, Deadline deadline) {
  auto invitation = std::make_shared<Invitation>(progress);
  auto text = invitation->text();
  progress.give([&progress, meeting, invitation] { progress.attach(meeting, invitation); });
  // Limited, because very long durations overflow in wait_for().
  const auto end = text.wait_for(std::min<Duration>(deadline.left(), 24h));
  progress.give([&progress, meeting] { progress.detach(meeting); });
  if (end != std::future_status::ready)
    throw Timeout(formatted("rank {} timed out waiting for mpirun's rank 0 to serve the store",
                            progress.rank()));
  return text.get();
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
  const auto meeting =
      fingerprint_of(fingerprint("a meeting of everybody"), progress.next_bootstrap());
  if (progress.rank() != 0) return connect(await_invitation(progress, meeting, deadline), deadline);
  auto secret = sys::random_bytes(secret_bytes);
  auto server = std::make_shared<StoreServer>(
      StoreServerOptions{.host = sys::all_addresses(), .secret = secret});
  auto addresses = listed(sys::own_addresses(), " ");
  invite(progress, meeting, formatted("{}{} {}", secret, server->port(), addresses));
  TcpStoreOptions own{.port = server->port(), .secret = secret};
  return rendezvous::keep_serving(std::move(server), std::make_shared<TcpStore>(own));
}

}  // namespace lockstep::mpi
