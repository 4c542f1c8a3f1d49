// formatted(): returns text from a pattern with the syntax of std::format, such as "rank {} of {}:
// {:.3f}".
//
// Uses fmt, but only inside the library: no header contains a type of fmt, because LibTorch comes
// with another version of fmt, and because every source file would compile its templates again. The
// number of fields is checked at compile time. A format specification that does not match its
// argument, such as {:.3f} for a string, throws std::runtime_error.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace lockstep {

// A type-erased argument of a pattern. Strings are referenced, not copied.
class FormatArgument {
 public:
  using Value =
      std::variant<bool, char, long long, unsigned long long, float, double, std::string_view>;

  template <typename T>
    requires std::is_arithmetic_v<T>
  FormatArgument(T value) : value_(widened(value)) {}
  template <typename T>
    requires std::convertible_to<const T&, std::string_view>
  FormatArgument(const T& text) : value_(std::string_view(text)) {}

  [[nodiscard]] const Value& value() const { return value_; }

 private:
  template <typename T>
  static Value widened(T value) {
    if constexpr (std::same_as<T, bool> || std::same_as<T, char> || std::floating_point<T>) {
      return value;
    } else if constexpr (std::is_signed_v<T>) {
      return static_cast<long long>(value);
    } else {
      return static_cast<unsigned long long>(value);
    }
  }

  Value value_;
};

// A pattern for the given number of arguments.
template <std::size_t arguments>
class FormatPattern {
 public:
  template <typename Text>
    requires std::convertible_to<const Text&, std::string_view>
  consteval FormatPattern(const Text& text) : text_(text) {
    if (fields(text_) != arguments) throw "the pattern has another number of fields";
  }
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  static constexpr std::size_t fields(std::string_view text) {
    std::size_t count = 0;
    int depth = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (depth == 0 && text.substr(i, 2) == "{{") {
        ++i;
      } else if (text[i] == '{') {
        ++count;
        ++depth;
      } else if (text[i] == '}' && depth > 0) {
        --depth;
      }
    }
    return count;
  }

  std::string_view text_;
};

// Formats a pattern that is not known at compile time.
[[nodiscard]] std::string formatted_from(std::string_view pattern,
                                         std::span<const FormatArgument> arguments);

template <typename... Arguments>
[[nodiscard]] std::string formatted(FormatPattern<sizeof...(Arguments)> pattern,
                                    const Arguments&... arguments) {
  std::initializer_list<FormatArgument> list{FormatArgument(arguments)...};
  return formatted_from(pattern.text(), {list.begin(), list.size()});
}

// Returns "1 rank" or "3 ranks"; with "batch" and "es", returns "2 batches".
[[nodiscard]] inline std::string counted(std::int64_t count, std::string_view noun,
                                         std::string_view plural_end = "s") {
  return formatted("{} {}{}", count, noun, count == 1 ? "" : plural_end);
}

// Writes formatted text to a C stream.
template <typename... Arguments>
void print_to(std::FILE* stream, FormatPattern<sizeof...(Arguments)> pattern,
              const Arguments&... arguments) {
  std::string text = formatted(pattern, arguments...);
  std::fwrite(text.data(), 1, text.size(), stream);
}

// Returns the elements of a range of numbers or strings as text, such as "1, 2, 3"; `field` is the
// format of one element.
template <typename Range>
[[nodiscard]] std::string listed(const Range& range, std::string_view separator,
                                 std::string_view field = "{}") {
  std::string text;
  bool first = true;
  for (const auto& element : range) {
    if (!first) text += separator;
    first = false;
    FormatArgument argument(element);
    text += formatted_from(field, {&argument, 1});
  }
  return text;
}

}  // namespace lockstep
