#include "support/warm_python.h"

#include "support/python.h"
#include "support/temporary_folder.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

const std::string server_script = LOCKSTEP_SOURCE_DIR "/tests/support/warm_python.py";

void require(bool good, const char* what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

int listen_at(const std::string& path) {
  int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  require(listener >= 0, "socket of the warm Python");
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, std::min(path.size(), sizeof(address.sun_path) - 1));
  require(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "bind");
  require(::listen(listener, SOMAXCONN) == 0, "listen");
  return listener;
}

class WarmPython {
 public:
  explicit WarmPython(const std::string& python) : owner_(::getpid()) {
    int listener = listen_at(folder_ / "socket");
    server_ = ::fork();
    require(server_ >= 0, "fork of the warm Python");
    if (server_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == owner_ && ::dup2(listener, STDIN_FILENO) == STDIN_FILENO)
        ::execl(python.c_str(), python.c_str(), server_script.c_str(), "serve", nullptr);
      ::_exit(127);
    }
    ::close(listener);
    std::ofstream(asker()) << "#!/bin/sh\nexec '" << python << "' -IS '" << server_script
                           << "' ask '" << (folder_ / "socket").string() << "' \"$@\"\n";
    std::filesystem::permissions(asker(), std::filesystem::perms::owner_all);
  }
  ~WarmPython() {
    if (::getpid() != owner_) return;
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
  }
  WarmPython(const WarmPython&) = delete;
  WarmPython& operator=(const WarmPython&) = delete;

  [[nodiscard]] std::filesystem::path asker() const { return folder_ / "python"; }

 private:
  TemporaryFolder folder_;
  pid_t owner_;
  pid_t server_ = -1;
};

}  // namespace

std::optional<std::filesystem::path> warm_python() {
  auto program = python();
  if (!program) return std::nullopt;
  static const WarmPython warm(program->string());
  return warm.asker();
}

}  // namespace lockstep::test
