#include "comm/backend/only_copy.h"

#include <lockstep/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

namespace lockstep {
namespace {

// LibTorch allows only one registration per operator namespace and process.
bool register_namespace() {
  try {
    static const auto* kept = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().registerLibrary("lockstep", "a copy of Lockstep"));
    return kept != nullptr;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

void check_only_copy() {
  static const bool is_only = register_namespace();
  if (!is_only)
    throw Error(
        "two copies of Lockstep are in this process: link everything in it with liblockstep.so "
        "(CMake: lockstep::shared), or only the program with the static libraries "
        "(lockstep::static)");
}

}  // namespace lockstep
