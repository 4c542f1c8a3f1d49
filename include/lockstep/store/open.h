// Opens a store by its address, in the format of LOCKSTEP_STORE.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

// Returns a TcpStore with `secret` for "tcp://HOST:PORT" (an IPv6 address stands in "[...]"),
// "tcp://HOST:PORT?reconnect=TIME" (sets TcpStoreOptions::reconnect, for example 90s) and
// "unix:@NAME"; returns a FileStore for "file:FOLDER". Blocks up to `timeout` until the server
// answers. Throws BadInput for any other address, and the errors that the constructors of these
// stores throw.
[[nodiscard]] std::shared_ptr<Store> open_store(std::string_view address, std::string secret,
                                                Duration timeout);

}  // namespace lockstep

#pragma GCC visibility pop
