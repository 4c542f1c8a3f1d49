// Session: a server's side of one connection.
#pragma once

#include "parallel/server/connection.h"
#include "parallel/server/server_state.h"

#include <memory>

namespace lockstep::ps {

class Session {
 public:
  // `number`: of the server; `worker`: what it says of itself.
  Session(ServerState& state, Connection& connection, int number, int worker);

  // Answers the worker until it leaves. Throws when it is lost, or the server has failed.
  void run();

 private:
  // False when the worker was refused.
  [[nodiscard]] bool welcome();
  void take_values();
  void take_push(const Header& header);
  void give_values();
  void give_rows(const Header& header);
  void refuse(const std::string& text);

  ServerState& state_;
  Connection& connection_;
  int number_;
  int worker_;
  at::Tensor values_;  // of an answer, kept
};

}  // namespace lockstep::ps
