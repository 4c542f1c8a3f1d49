#include "data/gzip_reader.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <zlib.h>

namespace lockstep::data {

void GzipReader::Close::operator()(gzFile_s* stream) const { ::gzclose_r(stream); }

GzipReader::GzipReader(std::filesystem::path file) : file_(std::move(file)) {
  errno = 0;
  stream_.reset(::gzopen(file_.c_str(), "rbe"));
  if (!stream_) {
    throw BadInput("reading " + file_.string() +
                   ": expected a readable file, found: " + std::generic_category().message(errno));
  }
  ::gzbuffer(stream_.get(), 1 << 17);
}

std::size_t GzipReader::read(std::span<std::byte> bytes) {
  constexpr std::size_t largest = std::size_t{1} << 30;  // gzread counts in int
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
  const std::string prefix = file_.string() + ": ";  // zlib begins its messages so
  const std::string cause = error == Z_ERRNO              ? std::generic_category().message(errno)
                            : message.starts_with(prefix) ? message.substr(prefix.size())
                                                          : message;
  throw BadInput("reading " + prefix + "expected an intact file, found: " + cause);
}

}  // namespace lockstep::data
