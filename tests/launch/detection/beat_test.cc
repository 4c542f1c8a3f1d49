#include "launch/detection/beat.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>
#include "support/free_port.h"
#include "support/processes.h"
#include "support/soon.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// The agent would else kill a rank that lives.
TEST(Beat, GoesOnWhenTheStoreCanBeReachedAgain) {
  test::expect_ranks(1, [](int) {
    const std::string secret(32, 's');
    const auto port = test::free_port();
    const auto serve = [&] {
      return std::make_unique<StoreServer>(StoreServerOptions{.port = port, .secret = secret});
    };
    const auto beats = [&] {
      TcpStore store({.host = "127.0.0.1", .port = port, .secret = secret, .connect_timeout = 20s});
      return store.get(beat_key("0.3"), test::soon());
    };
    const int file = ::memfd_create("secret", MFD_CLOEXEC);
    ASSERT_EQ(::write(file, secret.data(), secret.size()), std::ssize(secret));
    ::setenv("LOCKSTEP_SECRET_FD", std::to_string(file).c_str(), 1);
    ::setenv("LOCKSTEP_STORE", ("tcp://127.0.0.1:" + std::to_string(port)).c_str(), 1);
    ::setenv("LOCKSTEP_WORKER", "0.3", 1);
    ::setenv("LOCKSTEP_BEAT", "20ms", 1);
    auto server = serve();
    start_beating();
    EXPECT_NE(beats(), "");
    server.reset();
    std::this_thread::sleep_for(100ms);
    server = serve();
    EXPECT_NE(beats(), "") << "in a store that knew of none";
  });
}

}  // namespace
}  // namespace lockstep::launch
