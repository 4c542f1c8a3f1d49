#include <lockstep/parallel/server/server.h>

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/log.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "parallel/server/connection.h"
#include "parallel/server/meeting.h"
#include "parallel/server/server_state.h"
#include "sys/thread.h"

#include <lockstep/store/prefix_store.h>

#include <ATen/ops/empty.h>

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

namespace lockstep::ps {
namespace {

// Session: the server's side of one connection.
class Session {
 public:
  // `number`: the server's number; `worker`: the number that the worker announced; `begin_limit`:
  // the time limit from the answer to its hello until it begins.
  Session(ServerState& state, Connection& connection, int number, int worker, Duration begin_limit)
      : state_(state),
        connection_(connection),
        number_(number),
        worker_(worker),
        begin_limit_(begin_limit) {}

  // Answers the worker until it leaves. Throws if the worker is lost, or the server has failed.
  void run() {
    if (!welcome()) return state_.remove(worker_, /*lost=*/false);
    for (;;) {
      Header header = connection_.receive(no_deadline);
      switch (header.message) {
        case Message::push:
          take_push(header);
          break;
        case Message::pull:
          give_values();
          break;
        case Message::pull_rows:
          give_rows(header);
          break;
        case Message::request:
          state_.request(connection_.receive_text(header.first));
          connection_.send({Message::ready});
          break;
        case Message::constants:
          connection_.send({Message::ready, state_.constants().numel()});
          connection_.send(state_.constants());
          break;
        case Message::leave:
          return state_.remove(worker_, /*lost=*/false);
        default:
          throw BadInput(formatted("parameter server {}: worker {} sent a message of kind {}",
                                   number_, worker_, static_cast<std::int64_t>(header.message)));
      }
    }
  }

 private:
  // Returns false if the worker was refused.
  [[nodiscard]] bool welcome() {
    Header hello = connection_.receive(no_deadline);
    check_input(hello.message == Message::hello,
                "parameter server {}: worker {}: expected the message hello, found another one",
                number_, worker_);
    std::vector<Key> keys = take_keys(hello.first), constants = take_keys(hello.second);
    try {
      if (state_.meet_keys(worker_, keys, constants)) {
        connection_.send({Message::needs_values});
        take_values();
      }
      connection_.send({Message::ready, state_.prepare(worker_)});
    } catch (const Mismatch& error) {
      refuse(error.what());
      return false;
    }
    // Updates wait until the worker begins.
    Header begin = connection_.receive(begin_limit_);
    check_input(begin.message == Message::begin,
                "parameter server {}: worker {}: expected the message begin, found another one",
                number_, worker_);
    state_.begin(worker_, begin.first);
    connection_.send({Message::ready});
    return true;
  }

  void take_values() {
    Header header = connection_.receive(no_deadline);
    at::Tensor values = announced(header.first, at::kByte);
    at::Tensor constants = announced(header.second, at::kByte);
    connection_.receive(values);
    connection_.receive(constants);
    state_.set_values(values, constants);
  }

  void take_push(const Header& header) {
    const ServedParameters& parameters = state_.parameters();
    auto gradients = std::make_shared<PushedGradients>();
    gradients->whole = parameters.whole().make_buffer();
    gradients->flags = at::empty({static_cast<std::int64_t>(parameters.pieces())}, at::kByte);
    connection_.receive(gradients->whole);
    connection_.receive(gradients->flags);
    const Share& by_rows = parameters.by_rows();
    if (by_rows.size() > 0) {
      at::Tensor counts = at::empty({static_cast<std::int64_t>(by_rows.size())}, at::kLong);
      at::Tensor rows = announced(header.first, at::kLong);
      at::Tensor values = announced(header.second, at::kByte);
      connection_.receive(counts);
      connection_.receive(rows);
      connection_.receive(values);
      std::tie(gradients->rows, gradients->values) = parameters.cut_rows(counts, rows, values);
    }
    state_.push(worker_, std::move(gradients));
  }

  void give_values() {
    if (!values_.defined()) values_ = state_.parameters().whole().make_buffer();
    state_.pull(worker_, values_);
    connection_.send({Message::ready});
    connection_.send(values_);
  }

  void give_rows(const Header& header) {
    at::Tensor rows = announced(header.second, at::kLong);
    connection_.receive(rows);
    check_input(header.first >= 0, "parameter server {}: worker {} asks for rows of piece {}",
                number_, worker_, header.first);
    at::Tensor values = state_.pull_rows(static_cast<std::size_t>(header.first), rows);
    connection_.send({Message::ready});
    connection_.send(values.contiguous().view({-1}).view(at::kByte));
  }

  // Receives bytes or numbers that a header announces. Throws BadInput for a negative count.
  [[nodiscard]] at::Tensor announced(std::int64_t count, at::ScalarType dtype) const {
    check_input(count >= 0,
                "parameter server {}: worker {}: expected a number of elements, found {}", number_,
                worker_, count);
    return at::empty({count}, dtype);
  }

  [[nodiscard]] std::vector<Key> take_keys(std::int64_t bytes) {
    std::vector<Key> keys = decode_keys(connection_.receive_text(bytes));
    for (const Key& key : keys) {
      const bool is_dtype =
          key.dtype >= 0 && key.dtype < static_cast<int>(at::ScalarType::Undefined);
      check_input(is_dtype && key.element_bytes ==
                                  static_cast<std::int64_t>(c10::elementSize(
                                      static_cast<at::ScalarType>(is_dtype ? key.dtype : 0))),
                  "parameter server {}: worker {} has {} of dtype {} with elements of size {}",
                  number_, worker_, escaped(key.name), key.dtype, key.element_bytes);
    }
    return keys;
  }

  void refuse(const std::string& text) {
    connection_.send({Message::refused, static_cast<std::int64_t>(text.size())});
    connection_.send_text(text);
  }

  ServerState& state_;
  Connection& connection_;
  int number_;
  int worker_;
  Duration begin_limit_;
  at::Tensor values_;  // buffer for answers, reused
};

// How long a server waits for a further worker before it checks whether the last one has left.
constexpr auto look_for_worker = std::chrono::milliseconds(100);

void check_options(const Meeting& meeting, int number, const ServerOptions& options) {
  check_meeting(meeting);
  check(number >= 0 && number < meeting.servers,
        "parameter server: expected a number from 0 to {}, found {}", meeting.servers - 1, number);
  check(options.staleness >= 0, "parameter server: staleness must be 0 or more, found {}",
        options.staleness);
  check(options.staleness == 0 || options.consistency == Consistency::stale_synchronous,
        "parameter server: staleness {} is given without Consistency::stale_synchronous",
        options.staleness);
  check(options.optimizer != nullptr, "parameter server: ServerOptions::optimizer must be set");
}

}  // namespace

class Server::Impl {
 public:
  Impl(Meeting meeting, int number, ServerOptions options)
      : meeting_(std::move(meeting)),
        own_(own_announcement(describe_options(meeting_, options), number)),
        state_(meeting_, number, std::move(options),
               [this](std::optional<int> worker, const std::string& reason) {
                 abort_workers(worker, reason);
               }) {}

  ServerReport run() {
    check(!std::exchange(has_run_, true), "parameter server {}: run() was called before",
          own_.number);
    announce();
    {
      ScopeExit join_threads([this] {
        for (Guest& guest : guests_) guest.thread.join();
      });
      try {
        accept_workers();
      } catch (const std::exception& error) {
        state_.fail(std::current_exception(), first_line(error.what()));
      }
    }
    state_.rethrow_failure();
    return state_.report();
  }

 private:
  // A worker that has joined, and the thread that serves it.
  struct Guest {
    std::int64_t join = 0;
    Announcement worker;
    std::atomic<bool> has_gone = false;  // the thread has ended, or is about to
    std::mutex mutex;
    std::unique_ptr<Connection> connection;  // guarded by mutex; null before and after its lifetime
    sys::Thread thread;
  };

  void announce() {
    const std::string text = own_.text();
    std::string stands = meeting_.store->compare_set(server_key(own_.number), "", text);
    check_input(stands == text,
                "parameter server {}: another server with this number exists, on {}", own_.number,
                announcement_of(stands).address);
  }

  void accept_workers() {
    const auto deadline = Deadline::after(meeting_.join_timeout);
    bool is_closed = false;  // some server has seen the last worker leave
    for (std::int64_t join = 0; !state_.has_failed();) {
      reap();
      const bool has_nobody = state_.is_over() && guests_.empty();
      if (has_nobody && is_closed) return;
      try {
        const std::string key = join_key(join);
        std::string text = has_nobody ? meeting_.store->compare_set(key, "", run_is_over)
                                      : meeting_.store->get(key, Deadline::after(look_for_worker));
        is_closed = text == run_is_over;
        if (is_closed) {
          if (!has_nobody) std::this_thread::sleep_for(look_for_worker);
          state_.check_awaited(deadline);
          continue;
        }
        accept(join, text);
        ++join;
      } catch (const Timeout&) {
        state_.check_awaited(deadline);
      }
    }
  }

  void accept(std::int64_t join, std::string_view text) {
    std::lock_guard lock(mutex_);
    Guest& guest = guests_.emplace_back();
    // run() joins the threads of all workers in the list.
    ScopeExit refuse([this] { guests_.pop_back(); });
    guest.join = join;
    guest.worker = announcement_of(text);
    guest.thread = sys::Thread("parameter server", [this, &guest] {
      serve(guest);
      guest.has_gone = true;
    });
    refuse.cancel();
  }

  void serve(Guest& guest) {
    const int worker = guest.worker.number;
    try {
      auto connection = std::make_unique<Connection>(
          std::make_shared<PrefixStore>(pair_prefix(guest.join, own_.number), meeting_.store),
          Connection::Ends{.backend = backend_between(meeting_, own_, guest.worker),
                           .address = address_towards(own_, guest.worker),
                           .is_server = true,
                           .name = formatted("server {}, worker {}", own_.number, worker),
                           .timeout = meeting_.timeout,
                           .join_timeout = meeting_.join_timeout});
      {
        std::lock_guard lock(guest.mutex);
        guest.connection = std::move(connection);
      }
      ScopeExit close([&] {
        std::unique_ptr<Connection> over;  // destroyed last, because its end may block
        std::lock_guard lock(guest.mutex);
        over = std::move(guest.connection);
      });
      try {
        Session(state_, *guest.connection, own_.number, worker, meeting_.join_timeout).run();
      } catch (...) {
        // Send the reason before the connection ends, regardless of which thread comes first.
        if (state_.has_failed()) guest.connection->abort(state_.failure_text());
        throw;
      }
    } catch (const std::exception& error) {
      if (!state_.has_failed())
        log::warning("parameter server {} goes on without worker {}, which was lost: {}",
                     own_.number, worker, first_line(error.what()));
      state_.remove(worker, /*lost=*/true);
    }
  }

  void reap() {
    std::lock_guard lock(mutex_);
    std::erase_if(guests_, [](Guest& guest) {
      if (!guest.has_gone) return false;
      guest.thread.join();
      return true;
    });
  }

  // Ends the connection of one worker, or of all.
  void abort_workers(std::optional<int> worker, const std::string& text) {
    std::lock_guard lock(mutex_);
    for (Guest& guest : guests_) {
      if (worker && guest.worker.number != *worker) continue;
      std::lock_guard of_guest(guest.mutex);
      if (guest.connection) guest.connection->abort(text);
    }
  }

  const Meeting meeting_;
  const Announcement own_;
  ServerState state_;
  std::mutex mutex_;         // guards the list
  std::list<Guest> guests_;  // current workers, and those that left since reap()
  bool has_run_ = false;
};

Server::Server(Meeting meeting, int number, ServerOptions options) {
  check_options(meeting, number, options);
  impl_ = std::make_unique<Impl>(std::move(meeting), number, std::move(options));
}

Server::~Server() = default;

ServerReport Server::run() { return impl_->run(); }

}  // namespace lockstep::ps
