// The messages of exceptions, and the words that they must contain.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

// Returns the message of the exception of type E that `action` throws; "no error" if it throws
// nothing, and "another error: ..." for another exception.
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

// Expects that the text contains every word.
inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const auto& word : words)
    EXPECT_TRUE(contains(text, word)) << "no '" << word << "' in: " << text;
}

}  // namespace lockstep::test
