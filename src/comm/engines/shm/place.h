// Place: a byte of some rank's buffer as this process gets at it: an address here, which memory
// that is mapped in several processes has too, or an address in another process.
#pragma once

#include <cstddef>

#include <sys/types.h>

namespace lockstep::shm {

// Place() is nowhere; one that is declared without it has no value, so that a segment's arrays of
// places cost nothing for the ranks that there are not.
struct Place {
  std::byte* data;
  pid_t process;   // 0: here
  int descriptor;  // of that process, which its number may outlive; below 0: not known

  [[nodiscard]] static Place here(std::byte* address) { return {address, 0, -1}; }
  [[nodiscard]] bool exists() const { return data != nullptr; }
  [[nodiscard]] bool is_here() const { return process == 0; }
  // So many bytes further on; nowhere stays nowhere.
  [[nodiscard]] Place plus(std::size_t bytes) const {
    return {data ? data + bytes : nullptr, process, descriptor};
  }
  friend bool operator==(const Place&, const Place&) = default;
};

}  // namespace lockstep::shm
