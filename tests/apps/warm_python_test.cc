// Tests run Python with torch in forks of one warm Python process; a fork behaves like a new
// process.
#include "support/warm_python.h"
#include "apps/shell.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>

namespace lockstep::test {
namespace {

class WarmPython : public testing::Test {
 protected:
  void SetUp() override {
    if (!python()) GTEST_SKIP() << no_python;
  }
  static ShellResult run(const std::string& words) {
    return shell(warm_python()->string() + " " + words);
  }
  // Returns shell words that wait for a condition, and end the shell on a timeout.
  static std::string until(const std::string& condition) {
    return "i=0; until " + condition +
           "; do i=$((i+1)); [ $i -lt 2000 ] || exit 9; sleep 0.01; done; ";
  }
};

TEST_F(WarmPython, AScriptHasItsArgumentsEnvironmentFolderAndFiles) {
  TemporaryFolder folder;
  std::ofstream(folder / "beside.py") << "word = 'beside'\n";
  std::ofstream(folder / "script.py")
      << "import os, sys, torch, beside\n"
         "print(sys.argv[1:], os.environ['SAID'], os.environ.get('HOME'), os.getcwd(),\n"
         "      sys.stdin.read(), beside.word, torch.ones(3).sum().item())\n";
  auto found = shell("cd /usr && echo in | env -u HOME SAID=this " + warm_python()->string() +
                     " -W ignore " + (folder / "script.py").string() + " 'a b' -c 2>&1");
  EXPECT_EQ(found.exit_code, 0);
  EXPECT_EQ(found.output, "['a b', '-c'] this None /usr in\n beside 3.0\n");
}

TEST_F(WarmPython, AScriptEndsItsAskerAsItEnds) {
  EXPECT_EQ(run("-c 'import sys; sys.exit(3)'").exit_code, 3);
  EXPECT_EQ(run("-c 'import os; os.kill(os.getpid(), 11)' 2>&1").exit_code, 128 + SIGSEGV);
  auto failed = run("-c 'raise ValueError(\"wrong\")' 2>&1");
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_NE(failed.output.find("ValueError: wrong"), std::string::npos) << failed.output;
}

TEST_F(WarmPython, AScriptWhoseAskerIsKilledIsKilled) {
  TemporaryFolder folder;
  std::string mark = folder / "process";
  std::string script = "import os, time; open(\"" + mark +
                       ".part\", \"w\").write(str(os.getpid())); os.rename(\"" + mark +
                       ".part\", \"" + mark + "\"); time.sleep(600)";
  auto waited = shell(warm_python()->string() + " -c '" + script + "' & asker=$!; " +
                      until("[ -e " + mark + " ]") + "kill -9 $asker; " +
                      until("! kill -0 $(cat " + mark + ") 2>/dev/null") + "echo gone");
  EXPECT_EQ(waited.exit_code, 0);
  EXPECT_EQ(waited.output, "gone\n");
}

}  // namespace
}  // namespace lockstep::test
