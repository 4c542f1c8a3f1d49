// The secret of a store that processes on several hosts share: a file that only its owner can
// read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// What the functions here return: bytes made from the file's (BLAKE2b), so that a file may hold
// text or bytes, of any length from 16 bytes to 64 KiB.
inline constexpr std::size_t file_secret_bytes = 32;

// Blocks on the disk. BadInput when the file is no regular one, belongs to another user, can be
// read or written by others (expected: mode 600), or is too short or too long. SystemError when it
// cannot be read.
[[nodiscard]] std::string read_secret_file(const std::filesystem::path& file);

// The file of this user: $XDG_STATE_HOME/lockstep/secret, else ~/.local/state/lockstep/secret.
// BadInput where neither variable is set.
[[nodiscard]] std::filesystem::path user_secret_file();

// read_secret_file() of user_secret_file(), which is made with random content when it is missing.
// Any number of processes may call this at the same time, also on hosts that share the folder:
// all get the same secret.
[[nodiscard]] std::string user_secret();

}  // namespace lockstep

#pragma GCC visibility pop
