// What a client wants to be said when its connection has ended: values for keys where nothing
// stands by then.
#pragma once

#include "store/wire.h"

#include <cstddef>
#include <map>
#include <string>

namespace lockstep::store {

inline constexpr std::size_t max_last_words = 16;
inline constexpr std::size_t max_last_word_bytes = 64 << 10;

class LastWords {
 public:
  // The reply to a request with Code::last_word: `done`, or `refused` when it makes no sense or is
  // too much; then nothing has changed.
  [[nodiscard]] Message leave(const Message& request);

  [[nodiscard]] const std::map<std::string, std::string>& words() const { return words_; }

 private:
  std::map<std::string, std::string> words_;  // by key
};

}  // namespace lockstep::store
