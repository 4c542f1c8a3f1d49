// What only processes of one host can do over a unix socket: learn who the peer is, and hand over
// open files.
#pragma once

#include "sys/file_descriptor.h"

#include <cstddef>
#include <span>
#include <vector>

#include <sys/types.h>

#include <lockstep/base/deadline.h>

namespace lockstep::sys {

// Who connected or listened, as the kernel noted it then.
struct PeerCredentials {
  pid_t pid = 0;  // 0 when the peer is in a pid namespace that this one cannot see
  uid_t uid = 0;
  gid_t gid = 0;
};
[[nodiscard]] PeerCredentials peer_credentials(int socket);

inline constexpr std::size_t max_passed_descriptors = 64;

// One message: at least one byte and up to 64 descriptors, which stay open here too. Errors as in
// sockets.h.
void send_descriptors(int socket, std::span<const std::byte> bytes,
                      std::span<const int> descriptors, Deadline deadline);
// Exactly `bytes` and exactly `count` descriptors (closed on exec). BadInput when the peer sent
// another number of them.
[[nodiscard]] std::vector<FileDescriptor> receive_descriptors(int socket,
                                                              std::span<std::byte> bytes,
                                                              std::size_t count, Deadline deadline);

}  // namespace lockstep::sys
