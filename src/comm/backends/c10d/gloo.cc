#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/backends/c10d/store_adapter.h"
#include "comm/rendezvous/meeting.h"
#include "sys/signals.h"
#include "sys/thread.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <gloo/context.h>

#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::c10d_backend {
namespace {

using std::chrono::milliseconds;

// Gloo's own timeout of an operation, practically infinite. The adapter has a deadline too, which
// starts with the wait instead of the operation; when it passes, the adapter closes the
// connections.
constexpr milliseconds practically_never = std::chrono::hours(24 * 365);

// A running operation whose thread gets a core at all ends within a few milliseconds.
constexpr auto longest_close = std::chrono::seconds(2);

// Gives access to two protected parts of c10d's Gloo: the number that marks a collective's
// messages, and the connections.
class MarkedGloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void mark_next(std::uint32_t mark) { collectiveCounter_ = mark; }
  // Closing a connection wakes the operations of the peer but not ours. A receive that times out
  // fails everything pending in its context, so post a receive without a sender for every peer. If
  // a connection is already closed, only that receive fails, at once.
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

using Made = c10::intrusive_ptr<MarkedGloo>;

// Gloo's connecting cannot be interrupted. If a rank is lost after publishing its address but
// before connecting, the other ranks would block until their deadline. So Gloo connects in a
// separate thread while this thread polls the store, which throws when the ranks no longer have a
// reason to meet (a round of an elastic run has ended). The connecting thread is then abandoned: it
// owns everything that it uses, and ends at Gloo's deadline. `never` is a key that is never set.
Made connect_in_thread(Store& store, const std::string& never, std::function<Made()> connect) {
  constexpr milliseconds between_questions{100};
  auto task = std::make_shared<std::packaged_task<Made()>>(std::move(connect));
  auto made = task->get_future();
  sys::Thread thread("gloo connects", [task] { (*task)(); });
  const std::array keys{never};
  try {
    while (made.wait_for(between_questions) != std::future_status::ready) {
      try {
        store.wait(keys, Deadline::after(milliseconds(1)));
      } catch (const Timeout&) {
        // Expected: the ranks may still meet.
      }
    }
  } catch (...) {
    thread.detach();
    throw;
  }
  thread.join();
  return made.get();
}

milliseconds in_milliseconds(Duration duration) {
  return std::min(std::chrono::ceil<milliseconds>(duration), practically_never);
}

class GlooConnection final : public C10dConnection {
 public:
  GlooConnection(std::shared_ptr<Store> store, const std::string& name, int rank, int size,
                 std::shared_ptr<::gloo::transport::Device> device, Duration join_timeout)
      : store_(std::move(store)), device_(std::move(device)) {
    auto options = c10d::ProcessGroupGloo::Options::create(in_milliseconds(join_timeout));
    options->devices = {device_};
    options->threads = 1;  // operations take effect in the order of their posts
    const auto prefix = formatted("lockstep/gloo/{}/", name);
    try {
      group_ = connect_in_thread(
          *store_, prefix + "never", [store = store_, prefix, rank, size, options, join_timeout] {
            return c10::make_intrusive<MarkedGloo>(as_c10d_store(store, prefix, join_timeout), rank,
                                                   size, options);
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
  [[nodiscard]] CallRoute route_of(const PostedCall& call) override { return {*group_, call.root}; }
  void mark_next(std::uint32_t mark) override { group_->mark_next(mark); }

  // An operation that is between two receives has nothing pending, and after the connections are
  // closed nothing would wake its next receive. So repeat until no operation is running.
  void close(const std::function<bool()>& are_running) noexcept override {
    const sys::ScopedSignalBlock quiet(SIGPIPE);  // Gloo's writes to closed sockets raise it
    const auto deadline = Deadline::after(longest_close);
    for (;;) {
      group_->fail_pending();
      if (!are_running() || deadline.passed()) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    try {
      group_->close_connections();
    } catch (const std::exception&) {
      // The connections are already closed.
    }
  }

  [[nodiscard]] std::shared_ptr<C10dConnection> make_group(const std::string& name, int rank,
                                                           int size, Duration timeout) override {
    return std::make_shared<GlooConnection>(store_, name, rank, size, device_, timeout);
  }

 private:
  // Waits until all ranks are connected. Gloo lets a rank continue once its own connections are
  // established. If that rank then ended, connections that other ranks are still making would
  // break, and these ranks could not tell which rank has ended.
  void meet(const std::string& name, int rank, int size, Duration join_timeout) {
    const auto connected = formatted("lockstep/gloo/{}/connected", name);
    if (rendezvous::barrier_arrive(*store_, connected, size)) return;
    try {
      rendezvous::barrier_wait(*store_, connected, Deadline::after(join_timeout));
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

std::shared_ptr<C10dConnection> make_gloo(std::shared_ptr<Store> store, const std::string& name,
                                          int rank, int size, const BackendOptions& options) {
  std::shared_ptr<::gloo::transport::Device> device;
  sys::run_without_signals(
      [&] { device = c10d::ProcessGroupGloo::createDeviceForHostname(options.address); });
  return std::make_shared<GlooConnection>(std::move(store), name, rank, size, std::move(device),
                                          options.join_timeout);
}

}  // namespace lockstep::c10d_backend
