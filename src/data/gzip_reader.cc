#include "data/gzip_reader.h"

#include <lockstep/base/error.h>

#include "sys/plain_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <zlib.h>

namespace lockstep::data {

void GzipReader::Close::operator()(gzFile_s* stream) const { ::gzclose_r(stream); }

GzipReader::GzipReader(std::filesystem::path file) : file_(std::move(file)) {
  sys::FileDescriptor opened;
  try {
    opened = sys::PlainFile(file_).release();
  } catch (const SystemError& error) {
    throw BadInput("reading " + file_.string() + ": expected a readable file, found: " +
                   std::generic_category().message(error.error_number()));
  }
  stream_.reset(::gzdopen(opened.get(), "rb"));
  if (!stream_) throw SystemError("reading " + file_.string(), ENOMEM);
  (void)opened.release();  // the stream closes it
  ::gzbuffer(stream_.get(), 1 << 17);
}

std::size_t GzipReader::read(std::span<std::byte> bytes) {
  // gzread() takes an unsigned int and returns an int
  constexpr std::size_t largest = std::size_t{1} << 30;
  std::size_t total = 0;
  while (total < bytes.size()) {
    errno = 0;
    const auto wanted = static_cast<unsigned>(std::min(bytes.size() - total, largest));
    const int count = ::gzread(stream_.get(), bytes.data() + total, wanted);
    int error = Z_OK;
    const std::string message = ::gzerror(stream_.get(), &error);
    if (count < 0 || (error != Z_OK && error != Z_STREAM_END)) refuse(error, message);
    if (count == 0) break;
    total += static_cast<std::size_t>(count);
  }
  return total;
}

void GzipReader::refuse(int error, const std::string& message) const {
  const std::size_t end = message.find(">: ");  // zlib begins its messages with "<fd:3>: "
  const std::string cause = error == Z_ERRNO ? std::generic_category().message(errno)
                            : message.starts_with("<fd:") && end != std::string::npos
                                ? message.substr(end + 3)
                                : message;
  throw BadInput("reading " + file_.string() + ": expected an intact file, found: " + cause);
}

}  // namespace lockstep::data
