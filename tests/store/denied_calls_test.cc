// A client whose transfers the kernel refuses although poll() reports that the socket is ready.
#include "support/denied_calls.h"
#include "support/processes.h"

#include <lockstep/base/error.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <ctime>

#include <sys/syscall.h>

namespace lockstep::store {
namespace {

using namespace std::chrono_literals;

class DeniedCalls : public test::WithDeniedCalls {};

TEST_F(DeniedCalls, ACallThatIsRefusedForEverEndsAndDoesNotSpin) {
  const StoreServer server({.secret = "secret"});
  for (const auto& call :
       test::denied_calls({{"sendto", SYS_sendto, 0}, {"recvfrom", SYS_recvfrom, 0}}, {EAGAIN})) {
    SCOPED_TRACE(call.text());
    test::expect_ranks(1, [&](int) {
      TcpStore store({.port = server.port(), .secret = "secret", .call_timeout = 500ms});
      store.set("key", "value");
      ASSERT_TRUE(test::deny(call));
      const auto begin = Clock::now();
      const auto cpu = std::clock();
      EXPECT_THROW(store.set("key", "another"), Error);
      EXPECT_GT(Clock::now() - begin, 400ms);
      EXPECT_LT(Clock::now() - begin, 10s);
      EXPECT_LT(std::clock() - cpu, CLOCKS_PER_SEC / 5) << "it spins";
    });
  }
}

}  // namespace
}  // namespace lockstep::store
