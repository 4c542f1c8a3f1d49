// Connection: a worker and a server, and their protocol.
//
// Two ranks of a separate group, with the server as rank 0: if one ends, only the other one gets
// PeerLost. The worker sends requests and the server answers, in turn:
//
//   hello     {bytes, bytes}, keys,      refused {bytes}, text; or needs_values; or ready {step}
//             keys of constants
//             values, constants          (after needs_values) ready {step}
//   begin     {step}                     ready {}
//   constants                            ready {bytes}, constants
//   push      {rows, bytes}, gradients, flags, counts of rows, rows, values       no answer
//   pull                                 ready {}, values
//   pull_rows {piece, rows}, rows        ready {}, values
//   request   {bytes}, text              ready {}
//   leave                                no answer
//
// Constants are buffers and frozen parameters. A message begins with a header of fixed size, from
// which both ends know the sizes of the following parts; empty parts are not sent. One thread at a
// time.
#pragma once

#include "parallel/server/key_plan.h"
#include "parallel/server/meeting.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/store/store.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::ps {

enum class Message : std::int64_t {
  hello,
  begin,
  constants,
  push,
  pull,
  pull_rows,
  request,
  leave,
  ready,
  needs_values,
  refused
};

struct Header {
  Message message = Message::ready;
  std::int64_t first = 0;
  std::int64_t second = 0;
};

// How long an idle server waits for a worker's next request.
inline constexpr Duration no_deadline = Duration::max();

class Connection {
 public:
  struct Ends {
    std::string backend;  // "shm" or "gloo"
    std::string address;  // gloo: this host's address for the other end
    bool is_server = false;
    std::string name;  // for messages
    Duration timeout = {};
    Duration join_timeout = {};
  };
  // Blocks until the other end has connected with the same prefix of a store.
  Connection(std::shared_ptr<Store> store, const Ends& ends);

  void send(const Header& header);
  [[nodiscard]] Header receive(Duration timeout);
  // Sends contiguous host tensors. Blocks until the other end has received them.
  void send(const at::Tensor& tensor);
  void receive(const at::Tensor& tensor);
  void send_text(std::string_view text);
  [[nodiscard]] std::string receive_text(std::int64_t bytes);

  // Thread-safe. Ends the connection on both ends with this reason.
  void abort(std::string_view reason) { group_.abort(reason); }

 private:
  int peer_;
  Group group_;
  at::Tensor out_, in_;  // headers
};

// One server, and the part of the parameters that it has.
struct RemoteServer {
  std::unique_ptr<Connection> connection;
  std::vector<Piece> pieces;
  std::unique_ptr<Share> whole, by_rows;
  at::Tensor buffer;  // a message with the whole pieces
};

class RemoteServers {
 public:
  // Blocks until all servers have joined, takes a number, and connects. Throws as Worker's
  // constructor.
  RemoteServers(const Meeting& meeting, std::optional<int> number, std::span<const Key> keys);

  [[nodiscard]] int worker() const { return worker_; }
  // Returns true for the server with the constants.
  [[nodiscard]] bool is_first(const RemoteServer& server) const {
    return &server == servers_.data();
  }

  // Runs action(server) for one server after another. Throws PeerLost, Timeout and Aborted, which
  // name the server; after any error, the object must not be used.
  void each(const char* what, std::int64_t step, const std::function<void(RemoteServer&)>& action);
  // Receives the answer of a server; throws Aborted with its reason if it refuses.
  [[nodiscard]] Header answer(RemoteServer& server) const;
  // Rethrows the error that has ended the connections.
  void check_alive() const;
  // Sends `leave` to all connected servers; never throws.
  void say_leave() noexcept;

  [[nodiscard]] Duration join_limit() const;

 private:
  [[nodiscard]] std::vector<Announcement> find() const;
  [[nodiscard]] std::string missing() const;
  void check_options(const std::vector<Announcement>& servers) const;
  [[nodiscard]] std::int64_t announce(const Announcement& own) const;
  void take_number(std::optional<int> asked, const Announcement& own);
  void connect(const std::vector<Announcement>& servers, const Announcement& own,
               std::span<const Key> keys);

  const Meeting meeting_;
  int worker_ = 0;
  std::vector<RemoteServer> servers_;
  std::exception_ptr death_;
};

}  // namespace lockstep::ps
