#include "parallel/server/session.h"

#include "base/check.h"
#include "base/format.h"

#include <ATen/ops/empty.h>

#include <tuple>
#include <utility>

namespace lockstep::ps {

Session::Session(ServerState& state, Connection& connection, int number, int worker)
    : state_(state), connection_(connection), number_(number), worker_(worker) {}

void Session::refuse(const std::string& text) {
  connection_.send({Message::refused, static_cast<std::int64_t>(text.size())});
  connection_.send_text(text);
}

bool Session::welcome() {
  Header hello = connection_.receive(no_deadline);
  check_input(hello.message == Message::hello, "parameter server {}: worker {} did not say hello",
              number_, worker_);
  std::vector<Key> keys = decode_keys(connection_.receive_text(hello.first));
  try {
    if (state_.meet_keys(worker_, keys)) {
      connection_.send({Message::needs_values});
      take_values();
    }
    connection_.send({Message::ready, state_.prepare(worker_)});
  } catch (const Mismatch& error) {
    refuse(error.what());
    return false;
  }
  Header begin = connection_.receive(no_deadline);
  check_input(begin.message == Message::begin, "parameter server {}: worker {} did not begin",
              number_, worker_);
  state_.begin(worker_, begin.first);
  connection_.send({Message::ready});
  return true;
}

void Session::take_values() {
  Header header = connection_.receive(no_deadline);
  at::Tensor values = at::empty({header.first}, at::kByte);
  at::Tensor constants = at::empty({header.second}, at::kByte);
  connection_.receive(values);
  connection_.receive(constants);
  state_.set_values(values, constants);
}

void Session::run() {
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

void Session::take_push(const Header& header) {
  const ServedParameters& parameters = state_.parameters();
  auto gradients = std::make_shared<PushedGradients>();
  gradients->whole = parameters.whole().make_buffer();
  gradients->flags = at::empty({static_cast<std::int64_t>(parameters.pieces())}, at::kByte);
  connection_.receive(gradients->whole);
  connection_.receive(gradients->flags);
  const Share& by_rows = parameters.by_rows();
  if (by_rows.size() > 0) {
    at::Tensor counts = at::empty({static_cast<std::int64_t>(by_rows.size())}, at::kLong);
    at::Tensor rows = at::empty({header.first}, at::kLong);
    at::Tensor values = at::empty({header.second}, at::kByte);
    connection_.receive(counts);
    connection_.receive(rows);
    connection_.receive(values);
    std::tie(gradients->rows, gradients->values) = parameters.cut_rows(counts, rows, values);
  }
  state_.push(worker_, std::move(gradients));
}

void Session::give_values() {
  if (!values_.defined()) values_ = state_.parameters().whole().make_buffer();
  try {
    state_.pull(worker_, values_);
  } catch (const Timeout& error) {
    return refuse(error.what());
  }
  connection_.send({Message::ready});
  connection_.send(values_);
}

void Session::give_rows(const Header& header) {
  at::Tensor rows = at::empty({header.second}, at::kLong);
  connection_.receive(rows);
  at::Tensor values = state_.pull_rows(static_cast<std::size_t>(header.first), rows);
  connection_.send({Message::ready});
  connection_.send(values.contiguous().view({-1}).view(at::kByte));
}

}  // namespace lockstep::ps
