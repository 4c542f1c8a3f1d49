#include "launch/round_store.h"

#include <gtest/gtest.h>

#include "support/messages.h"

#include <lockstep/base/error.h>

namespace lockstep::launch {
namespace {

using test::expect_words;
using test::message_of;

TEST(EndpointOf, IsReadAsItIsShown) {
  for (const char* text : {"host-a:29400", "10.0.0.1:1", "[fe80::1]:65535", "[::1]:7"})
    EXPECT_EQ(endpoint_of({.rendezvous = text}).text(), text);
  const sys::HostPort six = endpoint_of({.store = "[fe80::1]:65535"});
  EXPECT_EQ(six.host, "fe80::1");
  EXPECT_EQ(six.port, 65535);
}

TEST(EndpointOf, AnythingElseIsBadInput) {
  const auto problem = [](const char* text) {
    return message_of<BadInput>([&] { static_cast<void>(endpoint_of({.rendezvous = text})); });
  };
  for (const char* nonsense :
       {"", "host", "host:", ":1", "[]:1", "host:0", "host:65536", "host:port", "host:1 "})
    expect_words(problem(nonsense), {"expected HOST:PORT", nonsense});
  for (const char* everywhere : {"0.0.0.0:29400", "[::]:29400"})
    expect_words(problem(everywhere), {"that the other nodes can reach"});
}

}  // namespace
}  // namespace lockstep::launch
