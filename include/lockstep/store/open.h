// A store by its address, as it stands in LOCKSTEP_STORE.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

// "tcp://HOST:PORT" (with "[...]" around an IPv6 address), "tcp://HOST:PORT?reconnect=TIME" (with
// TcpStoreOptions::reconnect, such as 90s) and "unix:@NAME" are a TcpStore with that secret;
// "file:FOLDER" is a FileStore. Waits up to `timeout` for a server. BadInput for anything else, and
// as the stores themselves say.
[[nodiscard]] std::shared_ptr<Store> open_store(std::string_view address, std::string secret,
                                                Duration timeout);

}  // namespace lockstep

#pragma GCC visibility pop
