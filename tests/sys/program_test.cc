#include "sys/program.h"

#include "support/messages.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

namespace lockstep {
namespace {

using Request = CommandOptions::Request;
using Words = std::vector<std::string>;

struct Command {
  explicit Command(CommandOptions::Words words = CommandOptions::Words::refused)
      : options("lockstep try", "[OPTIONS]", "Tries.", words) {
    options.add({"ranks", "N", "how many", "1", 'n'}, number_into(ranks, 1, 64));
    options.add({"out", "PATH", "where"}, text_into(out));
    options.add({"json", "", "for programs"}, flag_into(json));
    options.add({"style", "WORD", "how", "plain"}, word_into(style, styles));
    options.add({"parts", "WORDS", "which"}, words_into(parts, styles));
    options.add({"inner", "N", ""}, number_into(inner, 0, 9));
    options.add({"wait", "TIME", "how long"}, duration_into(wait));
    options.add({"side", "WORD", "where"}, choice_into(side, {{"left", -1}, {"right", 1}}));
  }

  Request read(const Words& words) { return options.read(words); }
  std::string message(const Words& words) {
    return test::message_of<UsageError>([&] { (void)read(words); });
  }

  static constexpr std::array<std::string_view, 2> styles{"plain", "fancy"};
  int ranks = 1, inner = 0, side = 0;
  Duration wait = {};
  std::string out, style = "plain";
  std::vector<std::string> parts{"plain"};
  bool json = false;
  CommandOptions options;
};

TEST(CommandOptions, ValuesComeInAllSpellings) {
  for (const Words& words :
       {Words{"--ranks", "3"}, Words{"--ranks=3"}, Words{"-n", "3"}, Words{"-n3"}, Words{"-n=3"}}) {
    Command command;
    EXPECT_EQ(command.read(words), Request::go_on);
    EXPECT_EQ(command.ranks, 3) << words.front();
  }
  Command command;
  EXPECT_EQ(command.read({"--json", "--out=", "--style", "fancy", "--parts", "fancy,plain"}),
            Request::go_on);
  EXPECT_TRUE(command.json);
  EXPECT_EQ(command.out, "");
  EXPECT_EQ(command.style, "fancy");
  EXPECT_EQ(command.parts, (Words{"fancy", "plain"}));
}

TEST(CommandOptions, TimesAndChoicesAreValues) {
  Command command;
  EXPECT_EQ(command.read({"--wait", "1.5s", "--side", "right"}), Request::go_on);
  EXPECT_EQ(command.wait, std::chrono::milliseconds(1500));
  EXPECT_EQ(command.side, 1);
}

TEST(CommandOptions, AFlagCanBeTakenBack) {
  Command command;
  command.json = true;
  (void)command.read({"--json=false"});
  EXPECT_FALSE(command.json);
}

TEST(CommandOptions, MistakesAreOneLineThatNamesTheOption) {
  const std::pair<Words, std::string> cases[] = {
      {{"--rnaks", "2"}, "unknown option '--rnaks'; did you mean '--ranks'?"},
      {{"-ranks", "2"}, "unknown option '-ranks'; did you mean '--ranks'?"},
      {{"--hepl"}, "unknown option '--hepl'; did you mean '--help'?"},
      {{"--zzz=1"}, "unknown option '--zzz'; lockstep try --help lists them"},
      {{"-x"}, "unknown option '-x'; lockstep try --help lists them"},
      {{"--iner"}, "unknown option '--iner'; lockstep try --help lists them"},
      {{"--out"}, "--out needs a value"},
      {{"-n"}, "--ranks needs a value"},
      {{"--out", "--json"}, "--out needs a value"},
      {{"--ranks", "0"}, "--ranks: expected an integer from 1 to 64, found '0'"},
      {{"--ranks", "-1"}, "--ranks: expected an integer from 1 to 64, found '-1'"},
      {{"--ranks="}, "--ranks: expected an integer from 1 to 64, found ''"},
      {{"--out", "a", "--out=b"}, "--out is given twice: 'a' and 'b'"},
      {{"-n", "2", "--ranks", "2"}, "--ranks is given twice: '2' and '2'"},
      {{"--json", "--json"}, "--json is given twice"},
      {{"--json=yes"}, "--json: expected true or false, found 'yes'"},
      {{"--style", "plian"}, "--style: unknown value 'plian'; did you mean 'plain'?"},
      {{"--wait", "soon"}, "--wait: expected a time such as 10, 2.5s or 1m, found 'soon'"},
      {{"--wait", "-1s"}, "--wait: expected a time such as 10, 2.5s or 1m, found '-1s'"},
      {{"--side", "rigth"}, "--side: unknown value 'rigth'; did you mean 'right'?"},
      {{"--parts", "plain,"}, "--parts: unknown value ''; known: plain, fancy"},
      {{"word"}, "unexpected word 'word'"},
      {{"-"}, "unexpected word '-'"}};
  for (const auto& [words, said] : cases) EXPECT_EQ(Command().message(words), said);
  Command command;
  EXPECT_THROW((void)command.read({"--zzz"}), UsageError);
}

TEST(CommandOptions, HelpAndVersionEndTheReading) {
  Command command;
  EXPECT_EQ(command.read({"--help", "--zzz"}), Request::help);
  EXPECT_EQ(command.read({"--out", "x", "-h"}), Request::help);
  EXPECT_EQ(command.read({"--ranks", "many", "--help"}), Request::help);
  EXPECT_EQ(command.read({"--version"}), Request::version);
  EXPECT_EQ(command.read({"-V"}), Request::version);
  EXPECT_EQ(command.read({}), Request::go_on);
}

TEST(CommandOptions, WordsBetweenOptionsAreKept) {
  Command command(CommandOptions::Words::allowed);
  (void)command.read({"a", "--json", "b", "--", "--out"});
  EXPECT_EQ(command.options.words(), (Words{"a", "b", "--out"}));
}

TEST(CommandOptions, AProgramsOwnOptionsAreLeftToIt) {
  Command command(CommandOptions::Words::begin_a_program);
  (void)command.read({"-n", "2", "prog", "-n", "7", "--help", "--", "x"});
  EXPECT_EQ(command.ranks, 2);
  EXPECT_EQ(command.options.words(), (Words{"prog", "-n", "7", "--help", "--", "x"}));
  (void)command.read({"-n", "2", "--", "--odd", "-n"});
  EXPECT_EQ(command.options.words(), (Words{"--odd", "-n"}));
}

TEST(CommandOptions, HelpListsWhatIsDeclaredInLinesThatFit) {
  Command command;
  command.options.add({"long", "N", std::string(60, 'a') + " " + std::string(60, 'b')},
                      [](auto&) {});
  std::string help = command.options.help();
  EXPECT_TRUE(help.starts_with("Usage: lockstep try [OPTIONS]\n\nTries.\n\nOptions:\n")) << help;
  EXPECT_NE(help.find("  -n, --ranks N             how many [1]\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  --json                    for programs\n"), std::string::npos) << help;
  EXPECT_NE(help.find("\n" + std::string(28, ' ') + "bbb"), std::string::npos) << help;
  EXPECT_EQ(help.find("inner"), std::string::npos) << help;
  EXPECT_NE(help.find("  -V, --version "), std::string::npos) << help;
}

TEST(CommandOptions, HelpHasHeadings) {
  Command command;
  const auto nothing = [](const std::string&) {};
  command.options.add({.name = "lr", .value = "N", .help = "rate", .group = "Optimizer"}, nothing);
  command.options.add({.name = "out2", .value = "N", .help = "place", .group = "Places"}, nothing);
  command.options.add({.name = "beta", .value = "N", .help = "decay", .group = "Optimizer"},
                      nothing);
  const std::string help = command.options.help();
  const auto place = [&](const char* words) { return help.find(words); };
  EXPECT_LT(place("\nOptions:\n"), place("  --json"));
  EXPECT_LT(place("  --json"), place("  -V, --version"));
  EXPECT_LT(place("  -V, --version"), place("\n\nOptimizer:\n  --lr"));
  EXPECT_LT(place("\n\nOptimizer:\n  --lr"), place("  --beta"));
  EXPECT_LT(place("  --beta"), place("\n\nPlaces:\n  --out2"));
  EXPECT_NE(place("\n\nPlaces:\n  --out2"), std::string::npos) << help;
}

TEST(CommandOptions, NamesOfOtherProgramsAreSuggestions) {
  Command command;
  command.options.add({.name = "lr", .value = "N", .help = "rate", .synonyms = {"learning-rate"}},
                      [](const std::string&) {});
  EXPECT_EQ(command.message({"--learning-rate", "1"}),
            "unknown option '--learning-rate'; did you mean '--lr'?");
}

TEST(CommandOptions, AWordMayFollowAFlag) {
  Command command;
  std::string resume = "false";
  command.options.add({.name = "resume", .value = "", .help = "go on", .flag_word = "auto"},
                      text_into(resume));
  (void)command.read({"--resume", "auto"});
  EXPECT_EQ(resume, "auto");
  (void)command.read({"--resume", "--json"});
  EXPECT_EQ(resume, "true");
  (void)command.read({"--resume=auto"});
  EXPECT_EQ(resume, "auto");
  EXPECT_EQ(command.message({"--resume", "other"}), "unexpected word 'other'");
}

}  // namespace
}  // namespace lockstep
