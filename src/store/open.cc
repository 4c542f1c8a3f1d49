#include <lockstep/store/open.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "sys/socket_address.h"

#include <utility>

#include <lockstep/store/file_store.h>
#include <lockstep/store/tcp_store.h>

namespace lockstep {
namespace {

constexpr std::string_view tcp_scheme = "tcp://";
constexpr std::string_view reconnect_option = "?reconnect=";
constexpr std::string_view file_scheme = "file:";
constexpr std::string_view unix_scheme = "unix:@";

BadInput not_understood(std::string_view address) {
  return BadInput("store: expected tcp://HOST:PORT, unix:@NAME or file:FOLDER, found '" +
                  std::string(address) + "'");
}

TcpStoreOptions parse_tcp(std::string_view address) {
  std::string_view place = address.substr(tcp_scheme.size());
  Duration reconnect = Duration::zero();
  if (const std::size_t mark = place.find(reconnect_option); mark != std::string_view::npos) {
    const auto time = parse_duration(place.substr(mark + reconnect_option.size()));
    if (!time || *time < Duration::zero()) throw not_understood(address);
    reconnect = *time;
    place = place.substr(0, mark);
  }
  const auto at = sys::parse_host_port(place);
  if (!at || at->port == 0) throw not_understood(address);
  return {.host = at->host, .port = at->port, .reconnect = reconnect};
}

}  // namespace

std::shared_ptr<Store> open_store(std::string_view address, std::string secret, Duration timeout) {
  if (address.starts_with(tcp_scheme)) {
    TcpStoreOptions options = parse_tcp(address);
    options.secret = std::move(secret);
    options.connect_timeout = timeout;
    return std::make_shared<TcpStore>(std::move(options));
  }
  if (address.starts_with(unix_scheme) && address.size() > unix_scheme.size()) {
    std::string name(address.substr(unix_scheme.size() - 1));
    return std::make_shared<TcpStore>(TcpStoreOptions{
        .host = name, .port = 0, .secret = std::move(secret), .connect_timeout = timeout});
  }
  std::string_view folder = address.substr(std::min(address.size(), file_scheme.size()));
  if (!address.starts_with(file_scheme) || folder.empty()) throw not_understood(address);
  return std::make_shared<FileStore>(std::filesystem::path(folder));
}

}  // namespace lockstep
