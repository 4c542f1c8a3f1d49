// Tests when ranks of real groups write flight records, and the content of the records.
#include <lockstep/base/error.h>
#include <lockstep/comm/flight_record.h>

#include "base/format.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "support/torch/injection.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

using namespace lockstep;

namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(FlightRecord, IsWrittenByTheRanksOfADyingGroup) {
  for (auto backend : test::backends_of_processes()) {
    test::TemporaryFolder folder;
    test::RankRendezvous place(backend, 2);
    test::expect_ranks(2, [&](int rank) {
      ::setenv("LOCKSTEP_FLIGHT", folder.path().c_str(), 1);
      auto world = place.join(rank);
      auto pair = world.split(0);
      auto tensor = at::ones({100});
      pair.all_reduce(tensor, Op::sum, {.tag = "first"}).wait();
      EXPECT_THROW(pair.all_reduce(tensor, rank == 0 ? Op::sum : Op::max).wait(), Mismatch);
      world.barrier().wait();
    });
    for (int rank : {0, 1}) {
      const auto json = content(folder.path() / formatted("flight-rank-{}.json", rank));
      test::expect_words(
          json, {formatted("\"backend\": \"{}\"", test::name_of(backend)), "\"tag\": \"first\"",
                 "\"progress\": \"failed\"", "\"name\": \"world/split#1/0\"",
                 "\"failure\": \"rank 0 called all_reduce #2 (sum"});
    }
  }
}

TEST(FlightRecord, SaysTheSameOfARankThatLearnsWithItsNextCall) {
  if (!test::has(test::BackendKind::gloo)) GTEST_SKIP() << "no Gloo in this build";
  test::TemporaryFolder folder;
  test::RankRendezvous place(test::BackendKind::gloo, 2);
  test::expect_ranks(2, [&](int rank) {
    ::setenv("LOCKSTEP_FLIGHT", folder.path().c_str(), 1);
    auto world = place.join(rank);
    if (rank == 1) world.abort("enough");
    auto text = test::message_of<Aborted>([&] { world.barrier().wait(); });
    EXPECT_EQ(text.find("which is dead") != std::string::npos, rank == 1) << text;
  });
  for (int rank : {0, 1}) {
    test::expect_words(content(folder.path() / formatted("flight-rank-{}.json", rank)),
                       {"\"failure\": \"rank 1 ended the group: enough\""});
  }
}

TEST(FlightRecord, IsWrittenWhenAskedFor) {
  test::TemporaryFolder folder;
  test::RankRendezvous place(test::BackendKind::shm, 2);
  test::expect_ranks(2, [&](int rank) {
    ::unsetenv("LOCKSTEP_FLIGHT");
    auto world = place.join(rank);
    auto part = world.split(rank);
    world.barrier({.tag = "here"}).wait();
    EXPECT_THROW(write_flight_record(world), InvalidArgument);
    EXPECT_THROW(write_flight_record(part, folder.path()), InvalidArgument) << "one rank";
    const auto path = write_flight_record(world, folder.path());
    EXPECT_EQ(path, (folder.path() / formatted("flight-rank-{}.json", rank)).string());
    test::expect_words(content(path), {"\"tag\": \"here\"", "\"progress\": \"done\""});
    world.barrier().wait();
  });
}

// The rank that throws may catch the exception, so it prints and writes nothing. The ranks that
// lose it report what happened to it and write the record.
TEST(FlightRecord, OfARankThatAnExceptionTakesAwayIsThatOfThoseWhoMissIt) {
  for (auto backend : test::backends_of_processes()) {
    SCOPED_TRACE(test::name_of(backend));
    test::TemporaryFolder folder;
    test::RankRendezvous place(backend, 2);
    test::expect_ranks(2, [&](int rank) {
      ::setenv("LOCKSTEP_FLIGHT", folder.path().c_str(), 1);
      testing::internal::CaptureStderr();
      try {
        auto world = place.join(rank);
        world.barrier().wait();
        if (rank == 1) throw std::runtime_error("the loss is not a number");
        test::expect_words(test::message_of<PeerLost>([&] { world.barrier().wait(); }),
                           {"rank 1 of 2 was lost: it left because of an exception"});
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "the loss is not a number");
      }
      const auto printed = testing::internal::GetCapturedStderr();
      EXPECT_EQ(printed.empty(), rank == 1) << printed;
    });
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "flight-rank-1.json"));
    test::expect_words(content(folder.path() / "flight-rank-0.json"),
                       {"it left because of an exception"});
  }
}

TEST(FlightRecord, OfAnExceptionThatNobodyMissesIsNotWritten) {
  test::TemporaryFolder folder;
  test::RankRendezvous place(test::BackendKind::shm, 2);
  test::expect_ranks(2, [&](int rank) {
    const auto records = folder.path() / "made when needed";
    ::setenv("LOCKSTEP_FLIGHT", records.c_str(), 1);
    testing::internal::CaptureStderr();
    try {
      auto world = place.join(rank);
      auto part = world.split(0);
      part.all_reduce(at::ones({3}).t().expand({3, 3})).wait();
      FAIL() << "such a tensor is refused";
    } catch (const InvalidArgument&) {
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_FALSE(std::filesystem::exists(records));
  });
}

}  // namespace
