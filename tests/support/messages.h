// What a call throws, as text, and the words that must stand in it.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

// The text of the E that `action` throws; "no error", or "another error: ..." for anything else.
template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every word stands in the text.
inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const auto& word : words)
    EXPECT_TRUE(contains(text, word)) << "no '" << word << "' in: " << text;
}

}  // namespace lockstep::test
