// Which sanitizer watches the tests: some meet limits that a sanitizer itself needs more of.
#pragma once

namespace lockstep::test {

#if defined(__has_feature)
inline constexpr bool under_thread_sanitizer = __has_feature(thread_sanitizer);
inline constexpr bool under_address_sanitizer = __has_feature(address_sanitizer);
// Its checks of pointers to objects open descriptors.
inline constexpr bool under_undefined_behavior_sanitizer =
    __has_feature(undefined_behavior_sanitizer);
#else
#if defined(__SANITIZE_THREAD__)
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool under_address_sanitizer = true;
#else
inline constexpr bool under_address_sanitizer = false;
#endif
inline constexpr bool under_undefined_behavior_sanitizer = false;
#endif

}  // namespace lockstep::test
