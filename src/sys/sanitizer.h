// True if this build has a sanitizer that replaces malloc and so watches only blocks from malloc.
#pragma once

namespace lockstep::sys {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool malloc_is_watched = true;
#elif defined(__has_feature)
inline constexpr bool malloc_is_watched =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool malloc_is_watched = false;
#endif

}  // namespace lockstep::sys
