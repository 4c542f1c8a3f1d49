#include "parallel/server/connection.h"

#include "base/check.h"
#include "comm/init/backends.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

namespace lockstep::ps {
namespace {

constexpr std::int64_t header_numbers = 3;
// Per text: a longer one is not a list of keys.
constexpr std::int64_t most_text = std::int64_t{1} << 30;

Group pair_of(std::shared_ptr<Store> store, const Connection::Ends& ends) {
  auto backend = make_backend(
      ends.backend, std::move(store), ends.is_server ? 0 : 1, 2,
      {.timeout = ends.timeout, .join_timeout = ends.join_timeout, .address = ends.address});
  return {std::move(backend), ends.name, ends.timeout};
}

}  // namespace

Connection::Connection(std::shared_ptr<Store> store, const Ends& ends)
    : peer_(ends.is_server ? 1 : 0),
      group_(pair_of(std::move(store), ends)),
      out_(at::empty({header_numbers}, at::kLong)),
      in_(at::empty({header_numbers}, at::kLong)) {}

void Connection::send(const Header& header) {
  auto* numbers = out_.data_ptr<std::int64_t>();
  numbers[0] = static_cast<std::int64_t>(header.message);
  numbers[1] = header.first;
  numbers[2] = header.second;
  group_.send(out_, peer_, {.tag = "header"}).wait();
}

Header Connection::receive(Duration timeout) {
  group_.recv(in_, peer_, {.tag = "header", .timeout = timeout}).wait();
  const auto* numbers = in_.data_ptr<std::int64_t>();
  return {static_cast<Message>(numbers[0]), numbers[1], numbers[2]};
}

void Connection::send(const at::Tensor& tensor) {
  if (tensor.numel() > 0) group_.send(tensor, peer_, {.tag = "content"}).wait();
}

void Connection::receive(const at::Tensor& tensor) {
  if (tensor.numel() > 0) group_.recv(tensor, peer_, {.tag = "content"}).wait();
}

void Connection::send_text(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  send(bytes);
}

std::string Connection::receive_text(std::int64_t bytes) {
  check_input(bytes >= 0 && bytes <= most_text,
              "parameter server: a string of {} bytes was announced, expected at most {}", bytes,
              most_text);
  at::Tensor text = at::empty({bytes}, at::kByte);
  receive(text);
  return {static_cast<const char*>(text.data_ptr()), static_cast<std::size_t>(bytes)};
}

}  // namespace lockstep::ps
