// The sanitizer of this build: some tests set limits that are too low for a sanitizer.
#pragma once

namespace lockstep::test {

#if defined(__has_feature)
inline constexpr bool under_thread_sanitizer = __has_feature(thread_sanitizer);
inline constexpr bool under_address_sanitizer = __has_feature(address_sanitizer);
// UBSan's checks of object pointers open file descriptors.
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

// Both make programs slower and larger, so limits of time and of memory mean nothing.
inline constexpr bool under_sanitizer = under_thread_sanitizer || under_address_sanitizer;

}  // namespace lockstep::test
