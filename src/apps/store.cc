#include "apps/commands.h"

#include "base/check.h"
#include "base/format.h"
#include "launch/signals.h"
#include "sys/file_descriptor.h"
#include "sys/program.h"
#include "sys/socket_address.h"

#include <lockstep/store/secret.h>
#include <lockstep/store/store_server.h>

#include <algorithm>

#include <poll.h>

namespace lockstep::apps {

namespace {

constexpr const char* about_store =
    "Serves the store at which the nodes of `lockstep run --store HOST:PORT` meet, until SIGTERM "
    "or "
    "SIGINT. It runs apart from\n"
    "them, so that a run survives the loss of any of its nodes. One store is for one run.\n\n"
    "With --log it can itself be lost: started anew with the same file it goes on as the same "
    "store, and the nodes, which\n"
    "wait for it for --join-timeout, go on with it. What a client has been told is on the disk "
    "first.\n\n"
    "  store-host$ lockstep store --listen store-host:29400 --secret-file key --log store.log\n"
    "  any-host$   lockstep run --nnodes 1:4 --store store-host:29400 --secret-file key -n 4 "
    "./train\n";

constexpr int look_milliseconds = 500;

struct StoreWords {
  std::string listen, secret_file, log;
};

StoreServerOptions to_options(const StoreWords& words) {
  check_input(
      !words.listen.empty(),
      "--listen is missing: give the address at which nodes find the store, such as HOST:29400");
  check_input(!words.secret_file.empty(),
              "--secret-file is missing: any file of 16 bytes or more with mode 600, the same on "
              "all nodes");
  const auto at = sys::parse_host_port(words.listen);
  check_input(at.has_value(), "--listen: expected HOST:PORT, found '{}'", words.listen);
  return {.host = at->host, .port = at->port, .secret = {}, .log = words.log};
}

// Serves until a signal arrives. Returns 0 after a request to end, or 1 if the server ended by
// itself (it has logged why).
int serve_until_told(const StoreServer& server, launch::SignalQueue& signals) {
  while (server.serves()) {
    pollfd entry{signals.descriptor(), POLLIN, 0};
    if (::poll(&entry, 1, look_milliseconds) <= 0) continue;
    if (std::ranges::any_of(signals.take(), launch::asks_to_stop)) return 0;
  }
  return 1;
}

}  // namespace

int store_command(const std::vector<std::string>& words) {
  return sys::run_program("lockstep store", [&] {
    CommandOptions options("lockstep store", "--listen HOST:PORT --secret-file FILE [--log FILE]",
                           about_store);
    StoreWords parsed;
    options.add({"listen", "HOST:PORT", "Where to listen; port 0: a free one, which is printed"},
                text_into(parsed.listen));
    options.add({"secret-file", "FILE",
                 "What only the agents of this run know: 16 bytes or more, mode 600"},
                text_into(parsed.secret_file));
    options.add({"log", "FILE", "Keep the store there, to go on with it when started anew"},
                text_into(parsed.log));
    if (const auto code = sys::answer(options.read(words), options)) return *code;
    StoreServerOptions server_options;
    try {
      server_options = to_options(parsed);
    } catch (const BadInput& error) {
      throw UsageError(error.what());
    }
    server_options.secret = read_secret_file(parsed.secret_file);
    launch::SignalQueue signals;  // created before the server's thread, which inherits the mask
    const launch::SignalActions actions;
    const sys::RaisedOpenFilesLimit open_files;  // one for each client
    const StoreServer server(std::move(server_options));
    sys::write_out(formatted("store at {}\n", server.address()));
    return serve_until_told(server, signals);
  });
}

}  // namespace lockstep::apps
