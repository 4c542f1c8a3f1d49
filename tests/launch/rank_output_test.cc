#include "launch/output_relay.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include <unistd.h>

#include "launch/run_agent.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// All hot spares have the same rank, -1.
TEST(RankOutput, LinesOfProcessesInReserveAreKeptApart) {
  const Screen screen;
  Sink sink(screen.descriptor());
  OpenLine open;
  Printer printer(sink, open, PrefixStyle::rank);
  SharedFailures failures;
  RankOutput one(-1, printer, printer, failures, {}), other(-1, printer, printer, failures, {});
  const auto writes = [](RankOutput& output, std::string_view text) {
    ASSERT_EQ(::write(output.rank_error(), text.data(), text.size()), std::ssize(text));
    output.read(1, Clock::now());
    output.show_unfinished(Clock::now() + 1s);
  };
  writes(one, "a question: ");
  writes(other, "another: ");
  writes(other, "goes on\n");
  writes(one, "next\n");
  EXPECT_EQ(screen.text(), "[reserve] a question: \n[reserve] another: goes on\n[reserve] next\n");
}

}  // namespace
}  // namespace lockstep::launch
