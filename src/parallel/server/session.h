// Session: the server's side of one connection.
#pragma once

#include "parallel/server/connection.h"
#include "parallel/server/server_state.h"

#include <memory>

namespace lockstep::ps {

class Session {
 public:
  // `number`: the server's number; `worker`: the number that the worker announced; `begin_limit`:
  // the time limit from the answer to its hello until it begins.
  Session(ServerState& state, Connection& connection, int number, int worker, Duration begin_limit);

  // Answers the worker until it leaves. Throws if the worker is lost, or the server has failed.
  void run();

 private:
  // Returns false if the worker was refused.
  [[nodiscard]] bool welcome();
  void take_values();
  void take_push(const Header& header);
  void give_values();
  void give_rows(const Header& header);
  // Receives bytes or numbers that a header announces. Throws BadInput for a negative count.
  [[nodiscard]] at::Tensor announced(std::int64_t count, at::ScalarType dtype) const;
  [[nodiscard]] std::vector<Key> take_keys(std::int64_t bytes);
  void refuse(const std::string& text);

  ServerState& state_;
  Connection& connection_;
  int number_;
  int worker_;
  Duration begin_limit_;
  at::Tensor values_;  // buffer for answers, reused
};

}  // namespace lockstep::ps
