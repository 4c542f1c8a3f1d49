// `lockstep generate --model` with a folder from tests/hub/reference.py, and with its token ids.
#include "apps/shell.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

using test::shell;
using test::ShellResult;

std::string ask(const std::vector<std::string>& words) {
  std::vector<std::string> arguments{LOCKSTEP_SOURCE_DIR "/tests/hub/reference.py"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  return test::run_python(
             "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
             "run_name='__main__')",
             arguments)
      .output;
}

class GenerateFromModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::python()) GTEST_SKIP() << test::no_python;
    ask({"make", "llama", folder.path().string(), "7"});
  }

  ShellResult generate(const std::string& options) {
    return shell(test::program("lockstep") + " generate " + options + " 2>&1");
  }
  std::string model() { return "--model " + folder.path().string(); }

  test::TemporaryFolder folder;
};

TEST_F(GenerateFromModel, PrintsTheTokensOfPlainPython) {
  EXPECT_EQ(generate(model() + " --tokens 1,2,3 --greedy").output,
            ask({"generate", folder.path().string(), "1,2,3", "20"}));
  // Even beyond its max_position_embeddings, 32, the model sees all tokens.
  EXPECT_EQ(generate(model() + " --tokens 5 --new-tokens 40 --temperature 0").output,
            ask({"generate_all", folder.path().string(), "5", "40"}));
}

TEST_F(GenerateFromModel, AGpt2HasNoPositionsBeyondItsTable) {
  ask({"make", "gpt2", folder.path().string(), "7"});
  EXPECT_EQ(generate(model() + " --tokens 1,2,3 --new-tokens 30 --greedy").output,
            ask({"generate", folder.path().string(), "1,2,3", "30"}));
  const ShellResult refused = generate(model() + " --tokens 1,2,3 --new-tokens 31 --greedy");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.output,
            "lockstep generate: this GPT-2 has 32 positions, and 3 tokens of the prompt with "
            "--new-tokens 31 need 33: make at most 30 new tokens\n");
}

TEST_F(GenerateFromModel, RefusesTokensThatTheModelDoesNotHave) {
  for (const char* ids : {"1,61", "=-1", "1,,2", "1,", "'1 2'"}) {
    const ShellResult found = generate(model() + " --tokens" + (ids[0] == '=' ? "" : " ") + ids);
    EXPECT_EQ(found.exit_code, 2) << ids;
    EXPECT_NE(found.output.find("--tokens: expected token ids from 0 to 60"), std::string::npos)
        << found.output;
  }
}

TEST_F(GenerateFromModel, RefusesOptionsOfARun) {
  EXPECT_EQ(generate(model()).exit_code, 2);
  EXPECT_EQ(generate(model() + " --tokens 1 --prompt x").exit_code, 2);
  EXPECT_EQ(generate("run --new-tokens 3").exit_code, 2);
  EXPECT_EQ(generate("--model /nowhere --tokens 1").exit_code, 1);
}

}  // namespace
}  // namespace lockstep
