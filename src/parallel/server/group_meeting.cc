#include "parallel/server/group_meeting.h"

#include "base/check.h"
#include "base/format.h"
#include "sys/random_bytes.h"
#include "sys/socket_address.h"
#include "sys/topology.h"

#include <lockstep/comm/together.h>
#include <lockstep/store/open.h>
#include <lockstep/store/prefix_store.h>

#include <array>
#include <optional>
#include <span>
#include <string>

namespace lockstep::ps {
namespace {

// Returns random bytes in hexadecimal, so that they can be sent as text.
std::string new_secret() {
  std::array<unsigned char, 32> bytes{};
  sys::fill_randomly(std::as_writable_bytes(std::span(bytes)));
  std::string text;
  for (unsigned char byte : bytes) text += formatted("{:02x}", static_cast<int>(byte));
  return text;
}

// Returns the name of a host other than rank 0's, if there is one.
std::optional<std::string> another_host(Group& group) {
  std::optional<std::string> other;
  const std::string here = broadcast_text(group, sys::host_identity());
  for (int rank = 1; rank < group.size(); ++rank) {
    std::string name = broadcast_text(
        group, sys::host_identity() == here ? std::string() : sys::host_name(), rank);
    if (!name.empty()) other = name;
  }
  return other;
}

}  // namespace

GroupMeeting meet_in_group(Group& group, int servers) {
  const int workers = group.size() - servers;
  check(servers >= 1 && workers >= 1,
        "parameter server: expected at least one server and one worker, found {} and {}", servers,
        workers);
  const std::optional<std::string> other = another_host(group);
  GroupMeeting met;
  std::string address, secret;
  together(group, [&] {
    if (!group.is_root()) return;
    secret = new_secret();
    const std::string host = other ? sys::address_towards(*other) : "127.0.0.1";
    met.store_server =
        std::make_unique<StoreServer>(StoreServerOptions{.host = host, .secret = secret});
    address = "tcp://" + met.store_server->address();
  });
  address = broadcast_text(group, address);
  secret = broadcast_text(group, secret);
  met.place.is_server = group.rank() >= workers;
  met.place.number = met.place.is_server ? group.rank() - workers : group.rank();
  met.place.meeting.servers = servers;
  met.place.meeting.workers = workers;
  met.place.meeting.timeout = group.timeout();
  together(group, [&] {
    met.place.meeting.store = std::make_shared<PrefixStore>(
        "ps/", open_store(address, secret, met.place.meeting.join_timeout));
  });
  return met;
}

}  // namespace lockstep::ps
