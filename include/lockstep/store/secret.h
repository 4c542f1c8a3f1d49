// The secret of a store that processes on several hosts share: a file that only its owner can read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// Size of the secret that the functions below return. The secret is a BLAKE2b hash of the file's
// content, so the file may hold text or binary data of 16 bytes to 64 KiB.
inline constexpr std::size_t file_secret_bytes = 32;

// Returns the secret in `file`. Blocks on disk I/O. Throws BadInput if the file is not a regular
// file, belongs to another user, is accessible to other users (expected: mode 600), or is too short
// or too long. Throws SystemError if the file cannot be read.
[[nodiscard]] std::string read_secret_file(const std::filesystem::path& file);

// Returns the path of this user's secret file: $XDG_STATE_HOME/lockstep/secret if that variable is
// set, otherwise ~/.local/state/lockstep/secret. Throws BadInput if neither XDG_STATE_HOME nor HOME
// is set.
[[nodiscard]] std::filesystem::path user_secret_file();

// Returns read_secret_file() of user_secret_file(); creates the file with random content if it does
// not exist. Any number of processes may call user_secret() at the same time, also on hosts that
// share the folder: all of them get the same secret.
[[nodiscard]] std::string user_secret();

}  // namespace lockstep

#pragma GCC visibility pop
