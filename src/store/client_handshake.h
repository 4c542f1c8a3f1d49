// The client's side of the handshake (wire.h).
#pragma once

#include "store/handshake.h"
#include "store/sealed_stream.h"

#include <string_view>

#include <lockstep/base/deadline.h>

namespace lockstep::store {

struct ClientStreams {
  Sealer to_server;
  Opener from_server;
};

// Blocks until both sides have proven that they know the secret. `address` is for messages.
// BadInput when the server refuses, does not know the secret itself, or speaks something else;
// PeerLost when it closed before (it may have been too busy: try again); Timeout.
[[nodiscard]] ClientStreams shake_hands(int socket, std::string_view address, const StoreKey& key,
                                        Deadline deadline);

}  // namespace lockstep::store
