// A folder for what a run makes and nobody wants afterwards.
#pragma once

#include <lockstep/base/error.h>

#include <stdlib.h>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace lockstep::apps {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-bench-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      throw SystemError("cannot make the folder " + name, errno);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::apps
