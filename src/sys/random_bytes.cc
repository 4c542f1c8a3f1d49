#include "sys/random_bytes.h"

#include "sys/file_descriptor.h"

#include <lockstep/base/error.h>

#include <cerrno>

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

namespace lockstep::sys {

void fill_randomly(std::span<std::byte> bytes) {
  FileDescriptor device;
  while (!bytes.empty()) {
    const ssize_t count = device ? ::read(device.get(), bytes.data(), bytes.size())
                                 : ::getrandom(bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    const int error = count == 0 ? EIO : errno;
    if (!device)
      device.reset(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
    else
      throw SystemError("reading /dev/urandom", error);
    if (!device) throw SystemError("getting random bytes", error);
  }
}

}  // namespace lockstep::sys
