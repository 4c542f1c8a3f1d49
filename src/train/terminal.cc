#include "train/terminal.h"

#include "base/text.h"
#include "sys/file_descriptor.h"

#include "train/progress.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <array>
#include <cstdlib>

namespace lockstep::train {
namespace {

constexpr const char* terminal_variable = "LOCKSTEP_TERMINAL";
constexpr int usual_columns = 80;
constexpr int most_columns = 10'000;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

int columns_of(int descriptor) {
  winsize size = {};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

std::optional<std::string> terminal_of(std::FILE* stream) {
  if (variable("TERM") == "dumb") return std::nullopt;
  if (auto named = variable(terminal_variable); !named.empty()) return std::string(named);
  // Open MPI gives each rank a terminal of its own, and passes on what it reads there.
  if (!variable("OMPI_COMM_WORLD_RANK").empty()) return std::nullopt;
  if (::isatty(::fileno(stream)) != 1 || variable("TERM").empty()) return std::nullopt;
  std::array<char, 256> path{};
  return ::ttyname_r(::fileno(stream), path.data(), path.size()) == 0 ? path.data() : "1";
}

bool is_terminal(std::FILE* stream) { return terminal_of(stream).has_value(); }

int terminal_columns(std::FILE* stream) {
  auto chosen = parse_integer(variable("COLUMNS"));
  if (chosen && *chosen > 0 && *chosen < most_columns) return static_cast<int>(*chosen);
  int columns = columns_of(::fileno(stream));
  if (auto named = terminal_of(stream); columns == 0 && named && named->starts_with('/')) {
    // This process has no terminal of its own, and must not take this one.
    sys::FileDescriptor terminal(
        ::open(named->c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    if (terminal) columns = columns_of(terminal.get());
  }
  return columns > 0 ? columns : usual_columns;
}

bool wants_colours() { return variable("NO_COLOR").empty(); }

}  // namespace lockstep::train
