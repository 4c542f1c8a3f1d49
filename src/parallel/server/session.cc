#include "parallel/server/session.h"

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"

#include <ATen/ops/empty.h>

#include <tuple>
#include <utility>

namespace lockstep::ps {

Session::Session(ServerState& state, Connection& connection, int number, int worker,
                 Duration begin_limit)
    : state_(state),
      connection_(connection),
      number_(number),
      worker_(worker),
      begin_limit_(begin_limit) {}

at::Tensor Session::announced(std::int64_t count, at::ScalarType dtype) const {
  check_input(count >= 0, "parameter server {}: worker {}: expected a number of elements, found {}",
              number_, worker_, count);
  return at::empty({count}, dtype);
}

std::vector<Key> Session::take_keys(std::int64_t bytes) {
  std::vector<Key> keys = decode_keys(connection_.receive_text(bytes));
  for (const Key& key : keys) {
    const bool is_dtype = key.dtype >= 0 && key.dtype < static_cast<int>(at::ScalarType::Undefined);
    check_input(is_dtype && key.element_bytes ==
                                static_cast<std::int64_t>(c10::elementSize(
                                    static_cast<at::ScalarType>(is_dtype ? key.dtype : 0))),
                "parameter server {}: worker {} has {} of dtype {} with elements of size {}",
                number_, worker_, visible(key.name), key.dtype, key.element_bytes);
  }
  return keys;
}

void Session::refuse(const std::string& text) {
  connection_.send({Message::refused, static_cast<std::int64_t>(text.size())});
  connection_.send_text(text);
}

bool Session::welcome() {
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

void Session::take_values() {
  Header header = connection_.receive(no_deadline);
  at::Tensor values = announced(header.first, at::kByte);
  at::Tensor constants = announced(header.second, at::kByte);
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
    at::Tensor rows = announced(header.first, at::kLong);
    at::Tensor values = announced(header.second, at::kByte);
    connection_.receive(counts);
    connection_.receive(rows);
    connection_.receive(values);
    std::tie(gradients->rows, gradients->values) = parameters.cut_rows(counts, rows, values);
  }
  state_.push(worker_, std::move(gradients));
}

void Session::give_values() {
  if (!values_.defined()) values_ = state_.parameters().whole().make_buffer();
  state_.pull(worker_, values_);
  connection_.send({Message::ready});
  connection_.send(values_);
}

void Session::give_rows(const Header& header) {
  at::Tensor rows = announced(header.second, at::kLong);
  connection_.receive(rows);
  check_input(header.first >= 0, "parameter server {}: worker {} asks for rows of piece {}",
              number_, worker_, header.first);
  at::Tensor values = state_.pull_rows(static_cast<std::size_t>(header.first), rows);
  connection_.send({Message::ready});
  connection_.send(values.contiguous().view({-1}).view(at::kByte));
}

}  // namespace lockstep::ps
