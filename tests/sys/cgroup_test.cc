#include "sys/topology.h"

#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace lockstep::sys {
namespace {

// A folder with the files of /proc and /sys of some host.
class Cgroup : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  CgroupLimits read() { return read_cgroup_limits(folder_.path()); }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(Cgroup, NothingLimitsWhereNothingIsMounted) {
  CgroupLimits limits = read();
  EXPECT_FALSE(limits.cores);
  EXPECT_FALSE(limits.memory_bytes);
  EXPECT_FALSE(limits.memory_left);
}

TEST_F(Cgroup, VersionTwoTakesTheTightestLevel) {
  write("proc/self/cgroup", "0::/batch/job\n");
  write("proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  write("sys/fs/cgroup/batch/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/batch/job/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/batch/memory.max", "max\n");
  write("sys/fs/cgroup/batch/job/memory.max", "1000000\n");
  write("sys/fs/cgroup/batch/job/memory.current", "700000\n");
  write("sys/fs/cgroup/batch/job/memory.stat", "anon 500000\ninactive_file 100000\n");
  CgroupLimits limits = read();
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory_bytes, 1'000'000);
  EXPECT_EQ(limits.memory_left, 400'000);
}

TEST_F(Cgroup, VersionOneHasAHierarchyForEach) {
  write("proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n2:cpuset:/box\n");
  write("proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2000000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "500000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CgroupLimits limits = read();
  EXPECT_EQ(limits.cores, 2.0);
  EXPECT_EQ(limits.memory_bytes, 2'000'000);
  EXPECT_EQ(limits.memory_left, 1'500'000);
}

TEST_F(Cgroup, AContainerSeesItsOwnFolderAtTheMountPoint) {
  write("proc/self/cgroup", "0::/docker/abc\n");
  write("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(read().cores, 0.5);
  write("proc/self/mountinfo", "30 23 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  EXPECT_EQ(read().cores, 0.5);
}

TEST_F(Cgroup, NonsenseLimitsNothing) {
  write("proc/self/cgroup", "0::/\nx\n:::\n");
  write("proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\nshort line\n- - - -\n");
  write("sys/fs/cgroup/cpu.max", "-5 zero\n");
  write("sys/fs/cgroup/memory.max", "plenty\n");
  CgroupLimits limits = read();
  EXPECT_FALSE(limits.cores);
  EXPECT_FALSE(limits.memory_bytes);
}

}  // namespace
}  // namespace lockstep::sys
