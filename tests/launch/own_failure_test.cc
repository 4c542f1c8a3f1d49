#include "rank_env/rank_ends.h"

#include "launch/environment.h"
#include "launch/run_report.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace lockstep::launch {
namespace {

class OwnFailure : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv(variable::error_file); }
};

TEST_F(OwnFailure, IsReadByTheAgent) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "error.json";
  ::setenv(variable::error_file, file.c_str(), 1);
  rank_env::record_own_failure("first");
  rank_env::record_own_failure("data.bin: \"no\" room \xff");
  EXPECT_EQ(recorded_error(file), std::vector<std::string>{"data.bin: \"no\" room \xef\xbf\xbd"});
}

TEST_F(OwnFailure, IsKeptByNobodyWithoutALauncherOrWithoutAFolder) {
  ::unsetenv(variable::error_file);
  rank_env::record_own_failure("unheard");
  const test::TemporaryFolder folder;
  const std::string file = folder / "absent" / "error.json";
  ::setenv(variable::error_file, file.c_str(), 1);
  rank_env::record_own_failure("unheard");
  EXPECT_TRUE(recorded_error(file).empty());
}

}  // namespace
}  // namespace lockstep::launch
