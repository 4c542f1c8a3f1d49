#include <lockstep/store/tcp_store.h>

#include "base/check.h"
#include "store/client_connection.h"
#include "store/table.h"

#include <utility>

namespace lockstep {
namespace {

using store::Code;

// How long the client waits beyond the deadline for the server's report of missing keys.
constexpr Duration grace = std::chrono::seconds(1);

Deadline with_grace(Deadline deadline) {
  return deadline.is_never() ? deadline : Deadline::after(deadline.left() + grace);
}

std::string take_part(store::Message reply) {
  check_input(!reply.parts.empty(), "store: expected a value in a reply, found none");
  return std::move(reply.parts[0]);
}

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options)
    : connection_(std::make_unique<Connection>(options)) {}
TcpStore::~TcpStore() {
  // the parent still uses the connection
  if (connection_->is_copy_of_parent()) (void)connection_.release();
}

void TcpStore::set(std::string_view key, std::string_view value) {
  store::check_key(key);
  store::check_value(key, value);
  connection_->call({.code = Code::set, .parts = {std::string(key), std::string(value)}});
}

std::optional<std::string> TcpStore::try_get(std::string_view key) {
  store::check_key(key);
  auto reply = connection_->call({.code = Code::try_get, .parts = {std::string(key)}});
  return reply.parts.empty() ? std::nullopt : std::optional(take_part(std::move(reply)));
}

std::string TcpStore::get(std::string_view key, Deadline deadline) {
  store::check_key(key);
  return take_part(connection_->call(
      {.code = Code::get, .number = deadline.left().count(), .parts = {std::string(key)}},
      with_grace(deadline)));
}

void TcpStore::wait(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) store::check_key(key);
  connection_->call(
      {.code = Code::wait, .number = deadline.left().count(), .parts = {keys.begin(), keys.end()}},
      with_grace(deadline));
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  store::check_key(key);
  return connection_->call({.code = Code::add, .number = delta, .parts = {std::string(key)}})
      .number;
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) {
  store::check_key(key);
  store::check_value(key, expected);
  store::check_value(key, desired);
  return take_part(connection_->call(
      {.code = Code::compare_set,
       .parts = {std::string(key), std::string(expected), std::string(desired)}}));
}

bool TcpStore::erase(std::string_view key) {
  store::check_key(key);
  return connection_->call({.code = Code::erase, .parts = {std::string(key)}}).number == 1;
}

std::vector<std::string> TcpStore::keys(std::string_view prefix) {
  return connection_->call({.code = Code::keys, .parts = {std::string(prefix)}}).parts;
}

void TcpStore::set_on_disconnect(std::string_view key, std::string_view value) {
  store::check_key(key);
  connection_->call_on_each_connection(
      {.code = Code::on_disconnect, .parts = {std::string(key), std::string(value)}});
}

void TcpStore::disconnect() noexcept { connection_->lose("this process disconnected it"); }

std::string TcpStore::own_address() const { return connection_->own_address(); }

std::int64_t TcpStore::connections() const { return connection_->made(); }

}  // namespace lockstep
