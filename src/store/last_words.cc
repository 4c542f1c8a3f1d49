#include "store/last_words.h"

#include "store/limits.h"

#include <lockstep/base/check.h>
#include <lockstep/base/error.h>
#include <lockstep/base/text.h>

namespace lockstep::store {

Message LastWords::leave(const Message& request) {
  try {
    check_input(request.parts.size() == 2, "store: expected 2 parts in a last word, found {}",
                request.parts.size());
    const std::string &key = request.parts[0], &value = request.parts[1];
    check_key(key);
    check_input(
        value.size() <= max_last_word_bytes, "store: expected a last word of at most {}, found {}",
        format_bytes(max_last_word_bytes), format_bytes(static_cast<std::int64_t>(value.size())));
    check_input(words_.size() < max_last_words || words_.contains(key),
                "store: expected at most {} last words of a connection", max_last_words);
    words_[key] = value;
  } catch (const BadInput& error) {
    return {request.id, Code::refused, 0, {error.what()}};
  }
  return {request.id, Code::done, 0, {}};
}

}  // namespace lockstep::store
