// Numbers and texts as a list of words of 64 bits, in which ranks exchange descriptions of parts.
#pragma once
#include "base/format.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::parallel {

inline constexpr std::size_t word_bytes = sizeof(std::int64_t);

class Encoder {
 public:
  void number(std::int64_t value) { words_.push_back(value); }
  template <typename Numbers>
  void numbers(const Numbers& values) {
    number(static_cast<std::int64_t>(values.size()));
    for (auto value : values) number(value);
  }
  void text(const std::string& value) {
    number(static_cast<std::int64_t>(value.size()));
    std::size_t begin = words_.size();
    words_.resize(begin + (value.size() + word_bytes - 1) / word_bytes);
    if (!value.empty()) std::memcpy(words_.data() + begin, value.data(), value.size());
  }
  std::vector<std::int64_t> take() { return std::move(words_); }

 private:
  std::vector<std::int64_t> words_;
};

// Throws Mismatch for words that no Encoder has written.
class Decoder {
 public:
  explicit Decoder(std::span<const std::int64_t> words) : words_(words) {}

  std::int64_t number(std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    if (words_.empty()) throw Mismatch("exchange of parts: a description ends too early");
    const std::int64_t value = words_.front();
    if (value < 0 || value > most)
      throw Mismatch(
          formatted("exchange of parts: expected a number from 0 to {}, found {}", most, value));
    words_ = words_.subspan(1);
    return value;
  }
  // Returns the length of a list whose elements follow.
  std::size_t count() { return static_cast<std::size_t>(number(std::ssize(words_))); }
  template <typename Number>
  std::vector<Number> numbers() {
    std::vector<Number> values(count());
    for (Number& value : values)
      value = static_cast<Number>(number(std::numeric_limits<Number>::max()));
    return values;
  }
  std::string text() {
    constexpr auto bytes_of_word = static_cast<std::int64_t>(word_bytes);
    const auto length = static_cast<std::size_t>(
        number(bytes_of_word * std::max<std::int64_t>(0, std::ssize(words_) - 1)));
    std::string value(reinterpret_cast<const char*>(words_.data()), length);
    words_ = words_.subspan((length + word_bytes - 1) / word_bytes);
    return value;
  }

 private:
  std::span<const std::int64_t> words_;
};

}  // namespace lockstep::parallel
