// GPT-2's words: a text is split into them before bytes are merged.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::data {

// Splits a text with GPT-2's regular expression. Words are views of the text.
class Gpt2Words {
 public:
  // Throws BadInput if `text` is not UTF-8; `source` names the text in the message.
  Gpt2Words(std::string_view text, std::string_view source);
  ~Gpt2Words();
  Gpt2Words(const Gpt2Words&) = delete;
  Gpt2Words& operator=(const Gpt2Words&) = delete;

  // Returns the next word, or an empty view at the end of the text. Throws BadInput if PCRE2 fails,
  // for example because memory is short.
  [[nodiscard]] std::string_view next();

 private:
  struct Match;
  std::string_view text_;
  std::string source_;
  std::size_t offset_ = 0;
  std::unique_ptr<Match> match_;
};

// Returns false if no word of GPT-2 contains these bytes, so that a merge that makes them belongs
// to another word pattern. Checks ASCII characters only, because their classes are the same in all
// versions of Unicode. `source` names the tables in the message if PCRE2 fails.
[[nodiscard]] bool is_within_gpt2_word(std::string_view bytes, std::string_view source);

}  // namespace lockstep::data
