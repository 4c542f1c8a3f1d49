#include "apps/bench/python.h"

#include <lockstep/base/check.h>
#include <lockstep/base/environment.h>

#include <filesystem>

namespace lockstep::apps {

namespace fs = std::filesystem;

std::string find_python(const std::string& given) {
  std::string beside = fs::path(LOCKSTEP_SOURCE_DIR) / ".venv/bin/python";
  std::string python =
      !given.empty() ? given : environment::text("LOCKSTEP_PYTHON").value_or(beside);
  check_input(fs::exists(python),
              "no Python at {}: name one that has torch by --python or LOCKSTEP_PYTHON", python);
  return python;
}

std::string peer_file(const std::string& name) {
  std::string file = fs::path(LOCKSTEP_SOURCE_DIR) / "bench/peers" / name;
  check_input(fs::exists(file), "{} is not there: the source tree has moved", file);
  return file;
}

}  // namespace lockstep::apps
