#include "comm/engines/c10d/gloo.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/backend/one_line.h"
#include "comm/engines/c10d/make.h"
#include "comm/engines/c10d/store_adapter.h"
#include "comm/rendezvous/exchange.h"
#include "sys/error_instead_of_signal.h"
#include "sys/thread.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <gloo/context.h>

#include <chrono>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::c10d_engine {
namespace {

using std::chrono::milliseconds;

// Gloo's own deadline of an operation. The adapter has its own, which counts from a wait and not
// from the operation's turn; when that one passes, the connections are closed.
constexpr milliseconds practically_never = std::chrono::hours(24 * 365);

// A running operation whose thread gets a core at all ends within a few milliseconds.
constexpr auto longest_close = std::chrono::seconds(2);

// Opens what the adapter needs of c10d's Gloo: the number that marks a collective's messages, and
// its connections.
class MarkedGloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void mark_next(std::uint32_t mark) { collectiveCounter_ = mark; }
  // Closing a connection wakes the operations of the peer and not our own; a receive that passes
  // its deadline fails everything that is pending in its context. So one that nobody answers, from
  // every peer: where a connection is closed already it fails at once, and alone.
  void fail_pending() noexcept {
    for (int peer = 0; peer < getSize(); ++peer) {
      if (peer == getRank()) continue;
      try {
        std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
        recv(nothing, peer, std::numeric_limits<int>::max())->wait(milliseconds(1));
      } catch (const std::exception&) {
      }
    }
  }
  void close_connections() {
    for (auto& context : contexts_) context->closeConnections();
  }
};

milliseconds in_milliseconds(Duration duration) {
  return std::min(std::chrono::ceil<milliseconds>(duration), practically_never);
}

class GlooEngine final : public Engine {
 public:
  GlooEngine(std::shared_ptr<Store> store, const std::string& name, int rank, int size,
             std::shared_ptr<::gloo::transport::Device> device, Duration join_timeout)
      : store_(std::move(store)), device_(std::move(device)) {
    auto options = c10d::ProcessGroupGloo::Options::create(in_milliseconds(join_timeout));
    options->devices = {device_};
    options->threads = 1;  // operations take effect in the order of their posts
    try {
      sys::run_without_signals([&] {  // in Gloo's own threads too
        group_ = c10::make_intrusive<MarkedGloo>(
            as_c10d_store(store_, formatted("lockstep/gloo/{}/", name)), rank, size, options);
      });
    } catch (const PeerLost&) {
      throw;
    } catch (const std::exception& error) {
      throw Timeout(
          formatted("group {}: rank {} of {} could not connect with its peers over gloo: {}", name,
                    rank, size, first_line(error.what())));
    }
    group_->setTimeout(practically_never);
    meet(name, rank, size, join_timeout);
  }

  [[nodiscard]] std::string_view name() const override { return "gloo"; }
  [[nodiscard]] Carrier carrier_of(const PostedCall& call) override { return {*group_, call.root}; }
  void mark_next(std::uint32_t mark) override { group_->mark_next(mark); }

  // An operation between two of its receives has nothing pending; once the connections are closed,
  // nothing would wake what it posts next. So again, until none is running.
  void close(const std::function<bool()>& are_running) noexcept override {
    const sys::ErrorInsteadOfSignal quiet(
        SIGPIPE);  // Gloo writes so that a closed socket raises it
    const auto deadline = Deadline::after(longest_close);
    for (;;) {
      group_->fail_pending();
      if (!are_running() || deadline.passed()) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    try {
      group_->close_connections();
    } catch (const std::exception&) {
      // They are closed already.
    }
  }

  [[nodiscard]] std::shared_ptr<Engine> make_group(const std::string& name, int rank, int size,
                                                   Duration timeout) override {
    return std::make_shared<GlooEngine>(store_, name, rank, size, device_, timeout);
  }

 private:
  // Gloo lets a rank go on when its own connections stand. One that ended then would take away
  // those that others are still making, and they could not say whose end it was.
  void meet(const std::string& name, int rank, int size, Duration join_timeout) {
    const auto connected = formatted("lockstep/gloo/{}/connected", name);
    if (rendezvous::come_to(*store_, connected, size)) return;
    try {
      rendezvous::wait_for_all(*store_, connected, Deadline::after(join_timeout));
    } catch (const Timeout&) {
      throw Timeout(
          formatted("group {}: rank {} of {} is connected over gloo, but after {} not "
                    "all of its peers are",
                    name, rank, size, format_duration(join_timeout)));
    }
  }

  std::shared_ptr<Store> store_;
  std::shared_ptr<::gloo::transport::Device> device_;
  c10::intrusive_ptr<MarkedGloo> group_;
};

}  // namespace

bool has_gloo() { return true; }

std::shared_ptr<Engine> make_gloo(std::shared_ptr<Store> store, const std::string& name, int rank,
                                  int size, GlooOptions options) {
  std::shared_ptr<::gloo::transport::Device> device;
  sys::run_without_signals(
      [&] { device = c10d::ProcessGroupGloo::createDeviceForHostname(options.address); });
  return std::make_shared<GlooEngine>(std::move(store), name, rank, size, std::move(device),
                                      options.join_timeout);
}

}  // namespace lockstep::c10d_engine
