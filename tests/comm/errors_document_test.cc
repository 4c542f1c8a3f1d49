// docs/errors.md shows the sentences that ranks are really told: each is produced here, and must
// stand there but for numbers, names of files and what is in brackets.
#include "support/torch/injection.h"
#include "support/torch/mpirun_world.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <string_view>

using namespace lockstep;
using test::Misdeed;

namespace {

std::string general(std::string text) {
  const std::pair<const char*, const char*> rules[] = {
      {"\\([^)]*\\)", "(...)"},
      {"all_reduce|broadcast|barrier", "CALL"},
      {"ranks? [0-9]+((-|, )[0-9]+)*", "RANKS"},
      {"[a-z_]+\\.cc:[0-9]+", "PLACE"},
      {"waits in", "wait in"},
      {"[0-9]+", "N"},
  };
  for (const auto& [pattern, word] : rules)
    text = std::regex_replace(text, std::regex(pattern), word);
  return text;
}

// A rank that learns of it with its next call is told first that the group is dead.
std::string without_next_call(const std::string& text) {
  constexpr std::string_view words = " on group world, which is dead: ";
  const auto at = text.find(words);
  return at == std::string::npos ? text : text.substr(at + words.size());
}

std::string document() {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/errors.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

class ErrorsDocument : public testing::TestWithParam<test::Target> {};

TEST_P(ErrorsDocument, ShowsTheSentencesOf) {
  const auto shown = general(document());
  test::MpirunWorlds worlds;
  for (auto misdeed : {Misdeed::kill, Misdeed::exception, Misdeed::loop, Misdeed::dtype}) {
    const auto outcome =
        test::inject({.target = GetParam(), .misdeed = misdeed, .seed = 20}, worlds);
    ASSERT_TRUE(outcome.named_rightly) << outcome.problem;
    const auto text = without_next_call(outcome.texts.front());
    EXPECT_NE(shown.find(general(text)), std::string::npos)
        << "docs/errors.md does not show: " << text << "\nin general: " << general(text);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, ErrorsDocument, testing::ValuesIn(test::injection_targets()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
