// A text's bytes, as libsodium takes them.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::store {

inline unsigned char* octets_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

inline const unsigned char* octets_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace lockstep::store
