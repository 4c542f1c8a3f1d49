// Text that came from a peer, a rank or a file, made fit for one line on a terminal.
//
//   throw BadInput(formatted("key '{}' is not known", visible(key, 80)));
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

// `text` without anything that a terminal acts on. Control characters but for tabs become "\x1b", a
// line's end "\n" or "\r", bytes that are no UTF-8 "\xff"; the letters that turn the direction of
// writing or end a line in Unicode, "\u202e". Everything else stays, backslashes too. At most
// `most_bytes` of `text` are used, cut between letters; "..." then follows.
[[nodiscard]] std::string visible(std::string_view text,
                                  std::size_t most_bytes = std::string_view::npos);

}  // namespace lockstep
