#include <lockstep/store/secret.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "sys/file_descriptor.h"
#include "sys/files.h"
#include "sys/random_bytes.h"

#include <sodium.h>

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

constexpr std::size_t least_bytes = 16, most_bytes = 64 << 10;

void check_protected(const struct stat& found, const std::string& file) {
  check_input(S_ISREG(found.st_mode), "secret {}: expected a regular file", file);
  check_input(found.st_uid == ::geteuid(),
              "secret {}: expected a file of this user, {}; found one of user {}", file,
              ::geteuid(), found.st_uid);
  check_input((found.st_mode & 077) == 0,
              "secret {}: expected a file that only its owner can use (mode 600), found mode {:o}; "
              "chmod 600 makes it so",
              file, found.st_mode & 0777);
}

std::string made_from(const std::string& content) {
  constexpr std::string_view label = "lockstep: secret of a file";
  std::string secret(file_secret_bytes, '\0');
  auto bytes = [](std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
  };
  crypto_generichash(reinterpret_cast<unsigned char*>(secret.data()), secret.size(), bytes(content),
                     content.size(), bytes(label), label.size());
  return secret;
}

// Writes the secret to a temporary file and links it to its name: no process reads a partial
// secret, and if several processes create it concurrently, one of them wins.
void make_secret(const std::filesystem::path& file) {
  sys::make_directories(file.parent_path());
  std::string temporary = (file.parent_path() / ".secret.XXXXXX").string();
  const sys::FileDescriptor made(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 600
  if (!made) throw SystemError("making " + temporary, errno);
  const ScopeExit remove([&] { ::unlink(temporary.c_str()); });
  const std::string content = sys::random_bytes(32);
  sys::write_all_at(made.get(), 0, std::as_bytes(std::span(content)), temporary);
  if (::fsync(made.get()) != 0) throw SystemError("writing " + temporary, errno);
  if (::link(temporary.c_str(), file.c_str()) != 0 && errno != EEXIST)
    throw SystemError("making " + file.string(), errno);
}

}  // namespace

std::string read_secret_file(const std::filesystem::path& file) {
  // Non-blocking, because opening a pipe of that name would otherwise block.
  const sys::FileDescriptor open(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!open) throw SystemError("reading the secret " + file.string(), errno);
  struct stat found = {};
  if (::fstat(open.get(), &found) != 0) throw SystemError("looking at " + file.string(), errno);
  check_protected(found, file.string());
  std::string content(most_bytes + 1, '\0');
  const ssize_t size = ::pread(open.get(), content.data(), content.size(), 0);
  if (size < 0) throw SystemError("reading the secret " + file.string(), errno);
  content.resize(static_cast<std::size_t>(size));
  check_input(content.size() >= least_bytes && content.size() <= most_bytes,
              "secret {}: expected {} bytes to {}, found {}", file.string(), least_bytes,
              format_bytes(most_bytes), content.size());
  return made_from(content);
}

std::filesystem::path user_secret_file() {
  const std::filesystem::path name("lockstep/secret");
  if (auto state = environment::text("XDG_STATE_HOME")) return *state / name;
  auto home = environment::text("HOME");
  check_input(home.has_value(),
              "the user's secret: neither XDG_STATE_HOME nor HOME is set; set "
              "one, or name a file (LOCKSTEP_SECRET_FILE, --secret-file)");
  return std::filesystem::path(*home) / ".local/state" / name;
}

std::string user_secret() {
  const std::filesystem::path file = user_secret_file();
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) make_secret(file);
  return read_secret_file(file);
}

}  // namespace lockstep
