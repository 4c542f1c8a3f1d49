#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/shell.h"
#include "sys/topology.h"

#include <set>
#include <string>

namespace lockstep::apps {
namespace {

TEST(LockstepInfo, SaysWhatTheBuildHasAndTheMachineOffers) {
  const Finished info = lockstep_command({"info"});
  EXPECT_EQ(info.status.code, 0);
  for (const char* words :
       {"This build\n", "This machine\n", "backends", "libtorch", "simd", "memory free", "pidfd"})
    EXPECT_NE(info.output.find(words), std::string::npos) << words;
}

TEST(LockstepInfo, IsAlsoOneJsonObject) {
  const Finished info = lockstep_command({"info", "--json"});
  EXPECT_EQ(info.status.code, 0);
  const auto facts = nlohmann::json::parse(info.output);
  EXPECT_EQ(facts.at("machine").at("cores_usable"), sys::usable_cores());
  EXPECT_GT(facts.at("machine").at("memory_bytes").get<std::int64_t>(), 0);
  EXPECT_EQ(facts.at("machine").at("memfd"), true);
  EXPECT_EQ(facts.at("build").at("compiler").get<std::string>().empty(), false);
  const auto backends = facts.at("build").at("backends").get<std::set<std::string>>();
  const bool over_nodes = backends.contains("gloo") || backends.contains("mpi");
  EXPECT_EQ(backends.contains("hierarchical"), over_nodes);
  EXPECT_FALSE(backends.contains("nccl") && facts.at("build").at("cuda") == false);
}

TEST(LockstepInfo, AnUnknownOptionSuggestsTheNearest) {
  const Finished info = lockstep_command({"info", "--jsn"});
  EXPECT_EQ(info.status.code, 2);
  EXPECT_EQ(info.error, "lockstep info: unknown option '--jsn'; did you mean '--json'?\n");
}

TEST(LockstepInfo, AFullOutputIsAnError) {
  for (const char* words : {" info", " info --json"}) {
    const test::ShellResult result =
        test::shell(test::program("lockstep") + words + " 2>&1 > /dev/full");
    EXPECT_EQ(result.exit_code, 1) << words;
    EXPECT_NE(result.output.find("cannot write to standard output"), std::string::npos)
        << result.output;
  }
}

}  // namespace
}  // namespace lockstep::apps
