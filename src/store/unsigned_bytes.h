// A text's bytes as libsodium takes them, and the other way round.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::store {

inline unsigned char* unsigned_bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

inline const unsigned char* unsigned_bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

template <std::size_t size>
std::string_view text_of(const std::array<unsigned char, size>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), size};
}

}  // namespace lockstep::store
