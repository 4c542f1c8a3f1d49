// Why a group died: what one rank found out, and the error that all of its ranks then throw.
#pragma once

#include <exception>
#include <string>

namespace lockstep {

struct Verdict {
  char kind = 'A';  // P, T, M or A: PeerLost, Timeout, Mismatch, Aborted
  std::string text;

  [[nodiscard]] std::exception_ptr error() const;
};

}  // namespace lockstep
