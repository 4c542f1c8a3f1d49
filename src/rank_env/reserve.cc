#include "rank_env/reserve.h"

#include "base/environment.h"
#include "rank_env/variables.h"
#include "sys/file_descriptor.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

namespace lockstep::rank_env {
namespace {

constexpr const char* name_in_reserve = "reserve";
constexpr std::size_t name_bytes = 16;  // the kernel's limit for thread names
constexpr std::string_view end_of_place("\0\0", 2);

// Reads the agent's message: "NAME=value" strings, each terminated by a zero byte, and a final zero
// byte. Returns an empty string if the message is incomplete.
std::string read_place(int from) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (!text.ends_with(end_of_place)) {
    const ssize_t size = ::read(from, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return {};
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

void set_variables(std::string_view text) {
  while (text.size() > 1) {
    const std::string_view entry = text.substr(0, text.find('\0'));
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      ::setenv(std::string(entry.substr(0, equals)).c_str(),
               std::string(entry.substr(equals + 1)).c_str(), 1);
    text.remove_prefix(entry.size() + 1);
  }
}

// Only rank 0 reads the agent's standard input.
void leave_standard_input() {
  const sys::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing) ::dup2(nothing.get(), STDIN_FILENO);
}

}  // namespace

bool is_in_reserve() { return environment::text(variable::reserve_descriptor).has_value(); }

bool wait_for_place() {
  const auto number =
      environment::integer(variable::reserve_descriptor, 0, std::numeric_limits<int>::max());
  if (!number) return true;
  const sys::FileDescriptor socket(static_cast<int>(*number));
  ::unsetenv(variable::reserve_descriptor);
  std::array<char, name_bytes> name{};
  ::prctl(PR_GET_NAME, name.data());
  const char ready = 1;
  if (::send(socket.get(), &ready, 1, MSG_NOSIGNAL) != 1) return false;
  ::prctl(PR_SET_NAME, name_in_reserve);
  const std::string place = read_place(socket.get());
  ::prctl(PR_SET_NAME, name.data());
  if (place.empty()) return false;
  set_variables(place);
  if (environment::text(variable::rank) != "0") leave_standard_input();
  return true;
}

}  // namespace lockstep::rank_env
