#include <lockstep/store/open.h>

#include <lockstep/store/store_server.h>

#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(OpenStore, TcpAndFile) {
  StoreServer server({.secret = "secret"});
  auto tcp = open_store("tcp://" + server.address(), "secret", 10s);
  tcp->set("a", "1");
  EXPECT_EQ(open_store("tcp://localhost:" + std::to_string(server.port()), "secret", 10s)
                ->get("a", Deadline::after(10s)),
            "1");
  test::TemporaryFolder folder;
  open_store("file:" + folder.path().string(), "", 10s)->set("a", "2");
  EXPECT_EQ(open_store("file:" + folder.path().string(), "", 10s)->try_get("a"), "2");
}

TEST(OpenStore, AnythingElseIsBadInput) {
  for (const char* address : {"", "tcp://", "tcp://:1", "tcp://host", "tcp://host:", "tcp://host:0",
                              "tcp://host:65536", "tcp://host:x", "file:", "http://host:1", "fi"}) {
    EXPECT_THROW((void)open_store(address, "", 10ms), BadInput) << address;
  }
}

}  // namespace
}  // namespace lockstep
