#include "sys/random_bytes.h"

#include "base/format.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/error.h>

#include <cerrno>

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

namespace lockstep::sys {

std::string random_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  FileDescriptor device;
  for (std::size_t got = 0; got < size;) {
    const ssize_t count = device ? ::read(device.get(), bytes.data() + got, size - got)
                                 : ::getrandom(bytes.data() + got, size - got, 0);
    if (count > 0) {
      got += static_cast<std::size_t>(count);
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
  return bytes;
}

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (unsigned char byte : bytes) text += formatted("{:02x}", byte);
  return text;
}

}  // namespace lockstep::sys
