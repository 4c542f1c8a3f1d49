// RemoteServers: a worker's connections to all servers.
#pragma once

#include "parallel/server/connection.h"
#include "parallel/server/key_plan.h"
#include "parallel/server/meeting.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::ps {

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

  // Runs action(server) for one server after another. PeerLost, Timeout and Aborted name the
  // server; after any error, the object cannot be used any more.
  void each(const char* what, std::int64_t step, const std::function<void(RemoteServer&)>& action);
  // Receives the answer of a server; throws Aborted with its reason if it refuses.
  [[nodiscard]] Header answer(RemoteServer& server) const;
  // Rethrows the error that has ended the connections.
  void check_alive() const;
  // Sends `leave` to all servers that are there; never throws.
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
