#include "dispatch/key.h"

#include "base/format.h"
#include "comm/backend/only_copy.h"
#include "dispatch/call.h"
#include "dispatch/key_self_test.h"

#include <lockstep/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <string_view>

namespace lockstep::dispatch {
namespace {

using c10::DispatchKey;

// Below autograd, so that interceptors see what kernels see; LibTorch 2.11 to 2.13 register nothing
// there.
constexpr DispatchKey candidates[] = {DispatchKey::Fake};

// A registered key; unregistered again with this object.
struct Registration {
  DispatchKey key;
  c10::RegistrationHandleRAII fallback;
};

struct Outcome {
  std::optional<Registration> registration;
  std::string tried;  // "Fake: it is taken"
};

Outcome find_key() {
  c10::InferenceMode off(false);
  Outcome outcome;
  for (DispatchKey key : candidates) {
    std::string wrong;
    try {
      Registration registration{
          key, c10::Dispatcher::singleton().registerFallback(
                   key, c10::KernelFunction::makeFromBoxedFunction<&intercept>(), "lockstep")};
      wrong = try_key(key);
      if (wrong.empty()) {
        outcome.registration.emplace(std::move(registration));
        return outcome;
      }
    } catch (const std::exception& error) {
      std::string_view text = error.what();
      wrong = text.substr(0, text.find('\n'));
    }
    if (!outcome.tried.empty()) outcome.tried += "; ";
    outcome.tried += formatted("{}: {}", c10::toString(key), wrong);
  }
  return outcome;
}

// Made once and kept: tensors of any handle may still have the key when the process ends.
const Outcome& found_key() {
  static const auto* found = new Outcome(find_key());
  return *found;
}

}  // namespace

DispatchKey key() {
  check_only_copy();
  const Outcome& outcome = found_key();
  if (outcome.registration) return outcome.registration->key;
  throw Error(formatted(
      "sharded parameters: this LibTorch leaves no dispatch key for them; tried {}; use a LibTorch "
      "of a version that Lockstep supports, without an extension that takes these keys",
      outcome.tried));
}

std::string describe_key() { return formatted("fallback on {}", c10::toString(key())); }

}  // namespace lockstep::dispatch
