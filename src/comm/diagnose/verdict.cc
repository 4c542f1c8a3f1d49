#include "comm/diagnose/verdict.h"

#include <lockstep/base/error.h>

namespace lockstep {

std::exception_ptr Verdict::error() const {
  switch (kind) {
    case 'P':
      return std::make_exception_ptr(PeerLost(text));
    case 'T':
      return std::make_exception_ptr(Timeout(text));
    case 'M':
      return std::make_exception_ptr(Mismatch(text));
    default:
      return std::make_exception_ptr(Aborted(text));
  }
}

}  // namespace lockstep
