#include "launch/rendezvous_store.h"

#include "base/check.h"
#include "base/format.h"
#include "launch/environment.h"
#include "sys/high_descriptor.h"
#include "sys/random_bytes.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

namespace lockstep::launch {

namespace {

std::string random_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  sys::fill_randomly(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (unsigned char byte : bytes) text += formatted("{:02x}", byte);
  return text;
}

}  // namespace

RendezvousStore::RendezvousStore(int port) : secret_(random_secret()), run_id_(fresh_run_id()) {
  StoreServerOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.secret = secret_;
  server_ = std::make_unique<StoreServer>(std::move(options));
  store_address_ = "tcp://" + server_->address();
}

RendezvousStore::RendezvousStore(std::string store_address, std::string secret, std::string run_id)
    : secret_(std::move(secret)),
      run_id_(std::move(run_id)),
      store_address_(std::move(store_address)) {
  check(secret_.size() == secret_bytes, "the store's secret: expected {} bytes, found {}",
        secret_bytes, secret_.size());
}

sys::FileDescriptor RendezvousStore::secret_descriptor() const {
  const sys::FileDescriptor file(
      ::memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw SystemError("making a memory file for the store's secret", errno);
  if (::fchmod(file.get(), 0400) != 0 ||
      ::pwrite(file.get(), secret_.data(), secret_.size(), 0) !=
          static_cast<ssize_t>(secret_.size()) ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) !=
          0)
    throw SystemError("writing the store's secret", errno);
  return sys::with_high_number(file);
}

std::string random_secret() { return random_bytes(secret_bytes); }

std::string fresh_run_id() { return "lockstep-" + hexadecimal(random_bytes(8)); }

int free_port() {
  const sys::FileDescriptor six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 any_six = {};  // both families: IPV6_V6ONLY is off by default
  any_six.sin6_family = AF_INET6;
  socklen_t size = sizeof(any_six);
  auto* address = reinterpret_cast<sockaddr*>(&any_six);
  if (six && ::bind(six.get(), address, size) == 0 && ::getsockname(six.get(), address, &size) == 0)
    return ntohs(any_six.sin6_port);

  const sys::FileDescriptor four(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any_four = {};
  any_four.sin_family = AF_INET;
  size = sizeof(any_four);
  address = reinterpret_cast<sockaddr*>(&any_four);
  if (!four || ::bind(four.get(), address, size) != 0 ||
      ::getsockname(four.get(), address, &size) != 0)
    throw SystemError("looking for a free port", errno);
  return ntohs(any_four.sin_port);
}

}  // namespace lockstep::launch
