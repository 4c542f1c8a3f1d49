// A short text in shared memory. The words of the text are atomic, so that a reader sees a mixture
// of old and new text, and not undefined behaviour, while the owner rewrites it. Readers must
// detect by other means whether the text changed while they read it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace lockstep::sys {

template <std::size_t Words>
class SharedText {
 public:
  static constexpr std::size_t capacity = Words * 8;

  // Stores the first `capacity` bytes.
  void store(std::string_view text) {
    std::size_t length = std::min(text.size(), capacity);
    std::size_t words =
        std::min(Words, length / 8 + 1);  // with a terminating zero if there is room
    for (std::size_t i = 0; i < words; ++i) {
      std::uint64_t word = 0;
      std::size_t begin = i * 8;
      if (begin < length)
        std::memcpy(&word, text.data() + begin, std::min<std::size_t>(8, length - begin));
      words_[i].store(word, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] std::string load() const {
    std::array<char, capacity + 1> text{};
    for (std::size_t i = 0; i < Words; ++i) {
      std::uint64_t word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(text.data() + i * 8, &word, 8);
    }
    return std::string(text.data());
  }

 private:
  std::array<std::atomic<std::uint64_t>, Words> words_{};
};

}  // namespace lockstep::sys
