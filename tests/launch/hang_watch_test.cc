#include "launch/hang_watch.h"

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include <unistd.h>

#include <lockstep/store/open.h>
#include <lockstep/store/store_server.h>
#include "launch/detection/beat.h"
#include "support/free_port.h"
#include "support/processes.h"
#include "support/soon.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// As when the agent that serves it is stopped: the run has ended for other reasons by then.
TEST(HangWatch, EndsThoughTheStoreDoesNotAnswer) {
  const auto port = test::free_port();
  const std::string address = "tcp://127.0.0.1:" + std::to_string(port);
  test::RankProcesses server(1, [&](int) {
    const StoreServer serves({.port = port, .secret = "swordfish"});
    std::this_thread::sleep_for(60s);
  });
  const auto open = [&] { return open_store(address, "swordfish", 20s); };
  open()->set(beat_key("0.0"), "1");
  Clock::time_point begin;
  {
    HangWatch watch(1s, open);
    watch.watch({{"0.0", ::getpid()}});
    std::this_thread::sleep_for(500ms);
    server.kill(0, SIGSTOP);
    std::this_thread::sleep_for(500ms);  // a look is under way
    begin = Clock::now();
  }
  EXPECT_LT(Clock::now() - begin, 5s);
}

}  // namespace
}  // namespace lockstep::launch
