// docs/reference/error_messages.md shows the messages that ranks really get: the test produces each
// of them and looks up each clause in the document. The comparison ignores details that differ
// between runs: the failed rank, the ranks that wait, the call with its number, and its place in
// the source.
#include "support/torch/injection.h"
#include "support/torch/mpirun_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

using namespace lockstep;
using test::Misdeed;

namespace {

// Returns `text` with each match of `pattern` replaced by the result of `make`.
template <typename Make>
std::string replaced(const std::string& text, const std::regex& pattern, const Make& make) {
  std::string result;
  auto end = text.begin();
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), last; at != last; ++at) {
    result.append(end, (*at)[0].first).append(make(*at));
    end = (*at)[0].second;
  }
  return result.append(end, text.end());
}

// Returns the kind of an item in the parentheses after a call; "" for a tag, which is optional.
std::string kind_of(const std::string& item) {
  static const std::pair<std::regex, const char*> kinds[] = {
      {std::regex("[0-9.]+ ([KMG]i)?B"), "AMOUNT"},
      {std::regex("[0-9]+ x [A-Za-z0-9]+"), "AMOUNT"},
      {std::regex("[a-z_]+\\.cc:[0-9]+"), "PLACE"},
      {std::regex("sum|max"), "OP"},
      {std::regex("root [0-9]+"), "ROOT"}};
  for (const auto& [pattern, kind] : kinds)
    if (std::regex_match(item, pattern)) return kind;
  return "";
}

// Turns "all_reduce #8 (bucket 2, sum, 24 x float32, train.cc:88)" into "CALL (AMOUNT, PLACE)". All
// calls have the same kinds of items, except that a barrier has no elements.
std::string general_call(const std::smatch& match) {
  const std::string operation = match[1];
  std::vector<std::string> kinds;
  if (operation == "barrier") kinds.emplace_back("AMOUNT");
  std::istringstream items(match[3]);
  for (std::string item; std::getline(items >> std::ws, item, ',');) {
    const std::string kind = kind_of(item);
    if (kind == "OP") EXPECT_EQ(operation, "all_reduce") << match[0];
    if (kind == "ROOT") EXPECT_EQ(operation, "broadcast") << match[0];
    if (kind == "AMOUNT" || kind == "PLACE") kinds.push_back(kind);
  }
  std::string text = "CALL";
  for (const std::string& kind : kinds) text += (text == "CALL" ? " (" : ", ") + kind;
  return kinds.empty() ? text : text + ")";
}

// Replaces rank numbers by letters: the same rank gets the same letter everywhere; waiting ranks
// become RANKS.
std::string with_letters(const std::string& text) {
  std::vector<std::string> named;
  return replaced(text, std::regex("rank ([0-9]+)"), [&](const std::smatch& match) {
    auto at = std::ranges::find(named, match[1].str());
    if (at == named.end()) at = named.insert(at, match[1]);
    return std::string("rank ") + static_cast<char>('A' + (at - named.begin()));
  });
}

std::string general(std::string text) {
  text = replaced(text, std::regex("(all_reduce|broadcast|barrier) #[0-9]+( \\(([^)]*)\\))?"),
                  general_call);
  const std::pair<const char*, const char*> rules[] = {
      {"ranks? [0-9]+((-|, )[0-9]+)* waits? in", "RANKS wait in"},
      {"at [a-z_]+\\.cc:[0-9]+", "at PLACE"},
      {"process [0-9]+", "process N"},
      {"of [0-9]+ was", "of N was"},
      {"after [0-9.]+m?s", "after TIME"},
  };
  for (const auto& [pattern, word] : rules)
    text = std::regex_replace(text, std::regex(pattern), word);
  return with_letters(text);
}

// Removes the beginning that a message has if a rank detects the failure in its next call: that the
// group is dead.
std::string without_next_call(const std::string& text) {
  constexpr std::string_view words = " on group world, which is dead: ";
  const auto at = text.find(words);
  return at == std::string::npos ? text : text.substr(at + words.size());
}

// Splits a message into clauses such as "rank A of N was lost: its process N ended without leaving"
// and "RANKS wait in CALL (AMOUNT)". The later clauses of a message depend on timing.
std::vector<std::string> clauses_of(const std::string& sentence) {
  std::vector<std::string> clauses;
  std::string rest = general(sentence);
  for (std::size_t end = 0; (end = rest.find("; ")) != std::string::npos; rest.erase(0, end + 2))
    clauses.push_back(rest.substr(0, end));
  clauses.push_back(rest);
  return clauses;
}

std::set<std::string> document() {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/reference/error_messages.md");
  std::set<std::string> clauses;
  for (std::string line; std::getline(file, line);)
    for (auto& clause : clauses_of(line)) clauses.insert(std::move(clause));
  return clauses;
}

class ErrorsDocument : public testing::TestWithParam<test::Target> {};

TEST_P(ErrorsDocument, ShowsTheSentencesOf) {
  const auto shown = document();
  test::MpirunWorlds worlds;
  // The deadline is long, so that a rank that a slow machine delays for a second does not appear in
  // the text.
  constexpr auto deadline = std::chrono::seconds(3);
  for (auto misdeed : test::all_misdeeds()) {
    const auto outcome = test::inject(
        {.target = GetParam(), .misdeed = misdeed, .seed = 20, .deadline = deadline}, worlds);
    ASSERT_TRUE(outcome.named_rightly) << outcome.problem;
    for (const auto& told : outcome.texts) {
      const auto text = without_next_call(told);
      for (const auto& clause : clauses_of(text))
        EXPECT_TRUE(shown.contains(clause))
            << test::name_of(misdeed) << ": the document does not show '" << clause << "' of "
            << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ErrorsDocument, testing::ValuesIn(test::injection_targets()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
