#include "parallel/server/connection.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/init/backends.h"

#include <lockstep/store/prefix_store.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::ps {
namespace {

constexpr std::int64_t header_numbers = 3;
// Limit for the bytes of one text; lists of keys are shorter.
constexpr std::int64_t most_text = std::int64_t{1} << 30;
// Added to the timeout, so that a failing server can report its reason before its clients time out.
constexpr Duration beyond_the_servers = std::chrono::seconds(20);

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

RemoteServers::RemoteServers(const Meeting& meeting, std::optional<int> number,
                             std::span<const Key> keys)
    : meeting_(meeting) {
  check_meeting(meeting_);
  check(!number || (*number >= 0 && *number < meeting_.workers),
        "parameter server: expected a worker's number from 0 to {}, found {}", meeting_.workers - 1,
        number.value_or(0));
  std::vector<Announcement> servers = find();
  check_options(servers);
  Announcement own = own_announcement("", 0);
  take_number(number, own);
  own.number = worker_;
  connect(servers, own, keys);
}

std::string RemoteServers::missing() const {
  std::vector<int> missing;
  for (int server = 0; server < meeting_.servers; ++server)
    if (!meeting_.store->try_get(server_key(server))) missing.push_back(server);
  return formatted("{} {}", missing.size() == 1 ? "server" : "servers", listed(missing, ", "));
}

std::vector<Announcement> RemoteServers::find() const {
  std::vector<std::string> names;
  for (int server = 0; server < meeting_.servers; ++server) names.push_back(server_key(server));
  try {
    meeting_.store->wait(names, Deadline::after(meeting_.join_timeout));
  } catch (const Timeout&) {
    throw Timeout(formatted("parameter server: {} of {} did not arrive within {}", missing(),
                            meeting_.servers, format_duration(meeting_.join_timeout)));
  }
  std::vector<Announcement> servers;
  for (const std::string& name : names)
    servers.push_back(announcement_of(meeting_.store->try_get(name).value_or("")));
  return servers;
}

void RemoteServers::check_options(const std::vector<Announcement>& servers) const {
  for (const Announcement& server : servers)
    if (server.options != servers.front().options)
      throw Mismatch(formatted("parameter server 0 has {}; parameter server {} has {}",
                               servers.front().options, server.number, server.options));
  const std::string own = formatted("servers {}, workers {},", meeting_.servers, meeting_.workers);
  if (!servers.front().options.starts_with(own))
    throw Mismatch(formatted("this worker has {} and the parameter servers {}",
                             own.substr(0, own.size() - 1), servers.front().options));
}

void RemoteServers::take_number(std::optional<int> asked, const Announcement& own) {
  if (!asked) {
    worker_ = meeting_.workers + static_cast<int>(meeting_.store->add("late", 1)) - 1;
    return;
  }
  worker_ = *asked;
  std::string stands = meeting_.store->compare_set(formatted("worker/{}", worker_), "", own.text());
  check_input(stands == own.text(),
              "parameter server: another worker {} exists, on {}; leave the number of a worker "
              "that joins later to the servers",
              worker_, announcement_of(stands).address);
}

// Writes this worker's announcement under the first free index, and returns the index.
std::int64_t RemoteServers::announce(const Announcement& own) const {
  const std::string text = own.text();
  for (std::int64_t join = 0;; ++join) {
    std::string stands = meeting_.store->compare_set(join_key(join), "", text);
    if (stands == text) return join;
    if (stands == run_is_over)
      throw Aborted(formatted(
          "parameter server: worker {} came too late: the last worker of the run has left",
          worker_));
  }
}

void RemoteServers::connect(const std::vector<Announcement>& servers, const Announcement& own,
                            std::span<const Key> keys) {
  const std::int64_t join = announce(own);
  const auto plan = plan_keys(keys, meeting_.servers);
  for (const Announcement& server : servers) {
    const int k = server.number;
    RemoteServer& remote = servers_.emplace_back();
    remote.pieces = plan[static_cast<std::size_t>(k)];
    remote.whole = std::make_unique<Share>(keys, remote.pieces, Share::Kind::whole);
    remote.by_rows = std::make_unique<Share>(keys, remote.pieces, Share::Kind::by_rows);
    remote.buffer = remote.whole->make_buffer();
    remote.connection = std::make_unique<Connection>(
        std::make_shared<PrefixStore>(pair_prefix(join, k), meeting_.store),
        Connection::Ends{.backend = backend_between(meeting_, own, server),
                         .address = address_towards(own, server),
                         .is_server = false,
                         .name = formatted("server {}, worker {}", k, worker_),
                         .timeout = meeting_.timeout + beyond_the_servers,
                         .join_timeout = meeting_.join_timeout});
  }
}

void RemoteServers::check_alive() const {
  if (death_) std::rethrow_exception(death_);
}

void RemoteServers::each(const char* what, std::int64_t step,
                         const std::function<void(RemoteServer&)>& action) {
  for (std::size_t k = 0; k < servers_.size(); ++k) {
    auto text = [&](const std::exception& error) {
      return formatted("parameter server {} of {}, {} of step {}: {}", k, servers_.size(), what,
                       step, first_line(error.what()));
    };
    try {
      try {
        action(servers_[k]);
      } catch (const PeerLost& error) {
        throw PeerLost(text(error));
      } catch (const Timeout& error) {
        throw Timeout(text(error));
      } catch (const Aborted& error) {
        throw Aborted(text(error));
      }
    } catch (...) {
      death_ = std::current_exception();
      throw;
    }
  }
}

Header RemoteServers::answer(RemoteServer& server) const {
  const Duration limit = std::max(meeting_.timeout, meeting_.join_timeout) + beyond_the_servers;
  Header header = server.connection->receive(limit);
  if (header.message != Message::refused) return header;
  throw Aborted(server.connection->receive_text(header.first));
}

Duration RemoteServers::join_limit() const { return meeting_.join_timeout + beyond_the_servers; }

void RemoteServers::say_leave() noexcept {
  if (death_) return;
  for (RemoteServer& server : servers_) {
    try {
      server.connection->send({Message::leave});
    } catch (const std::exception&) {
      // The server has gone; it needs no message.
    }
  }
}

}  // namespace lockstep::ps
