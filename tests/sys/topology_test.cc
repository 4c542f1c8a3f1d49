#include "sys/topology.h"

#include "support/processes.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include <sched.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

TEST(Topology, CoresAreBoundedByTheMachine) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(::sysconf(_SC_NPROCESSORS_CONF)));
}

TEST(Topology, CoresFollowTheAffinity) {
  test::expect_ranks(1, [](int) {
    cpu_set_t allowed, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    int core = 0;
    while (!CPU_ISSET(core, &allowed)) ++core;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(usable_cores(), 1);
  });
}

TEST(Topology, MemoryIsSane) {
  MemorySize size = memory_size();
  EXPECT_GT(size.available, 0);
  EXPECT_LE(size.available, size.total);
  EXPECT_GT(size.total, 64 << 20);
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(Topology, KnowsASystemThatPromisesOnlyWhatItHas) {
  test::TemporaryFolder root;
  EXPECT_TRUE(overcommits_memory(root.path())) << "it does not say";
  write(root / "proc/sys/vm/overcommit_memory", "1\n");
  EXPECT_TRUE(overcommits_memory(root.path()));
  write(root / "proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_FALSE(overcommits_memory(root.path()));
}

TEST(Topology, MemoryIsCutByTheControlGroup) {
  test::TemporaryFolder root;
  write(root / "proc/meminfo",
        "MemTotal:        8000 kB\nMemFree:  1 kB\nMemAvailable:    6000 kB\n");
  EXPECT_EQ(memory_size(root.path()).total, 8000 * 1024);
  EXPECT_EQ(memory_size(root.path()).available, 6000 * 1024);
  write(root / "proc/self/cgroup", "0::/\n");
  write(root / "proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write(root / "sys/fs/cgroup/memory.max", "4096000\n");
  write(root / "sys/fs/cgroup/memory.current", "96000\n");
  EXPECT_EQ(memory_size(root.path()).total, 4'096'000);
  EXPECT_EQ(memory_size(root.path()).available, 4'000'000);
}

TEST(Topology, CachesAreReadAndMayBeUnknown) {
  test::TemporaryFolder root;
  EXPECT_EQ(level_3_cache_bytes(root.path()), 0);
  auto cache = [&](int index, const char* level, const char* type, const char* size) {
    auto folder =
        root.path() / "sys/devices/system/cpu/cpu0/cache" / ("index" + std::to_string(index));
    write(folder / "level", std::string(level) + "\n");
    write(folder / "type", std::string(type) + "\n");
    write(folder / "size", std::string(size) + "\n");
  };
  cache(0, "1", "Data", "48K");
  cache(1, "1", "Instruction", "32K");
  cache(2, "2", "Unified", "2048K");
  cache(3, "3", "Unified", "36M");
  EXPECT_EQ(level_3_cache_bytes(root.path()), 36 << 20);
}

TEST(Topology, ProcessesOfOneHostAgreeAndNamespacesDiffer) {
  std::string mine = host_identity();
  EXPECT_NE(mine.find(host_name()), std::string::npos);
  constexpr int not_allowed = 77;
  test::expect_ranks(2, [&](int) { EXPECT_EQ(host_identity(), mine); });
  auto results = test::run_ranks(1, [&](int) {
    if (::unshare(CLONE_NEWIPC) != 0) ::_exit(not_allowed);
    EXPECT_NE(host_identity(), mine);
  });
  if (results[0].exit_code == not_allowed) GTEST_SKIP() << "this process may not make a namespace";
  EXPECT_TRUE(results[0].ok()) << results[0];
}

}  // namespace
}  // namespace lockstep::sys
