#include "apps/facts.h"
#include "apps/simd.h"
#include "sys/topology.h"

#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

namespace {

// Returns the value of the first line "NAME : VALUE" in a file of /proc.
std::optional<std::string> field_of(const std::filesystem::path& file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(name) ||
        line.find_first_not_of(" \t", name.size()) != colon)
      continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return std::nullopt;
}

Facts or_null(const std::optional<std::string>& text) { return text ? Facts(*text) : Facts(); }

// Returns the word in brackets: "always [madvise] never".
Facts chosen(const std::string& file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  const std::size_t begin = line.find('['), end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return line.substr(begin + 1, end - begin - 1);
}

bool closes(long descriptor) {
  return descriptor >= 0 && ::close(static_cast<int>(descriptor)) == 0;
}

Facts space(const char* folder, bool free) {
  struct statvfs found = {};
  if (::statvfs(folder, &found) != 0) return {};
  return static_cast<std::int64_t>((free ? found.f_bavail : found.f_blocks) * found.f_frsize);
}

// Reads the driver's own files, because a CUDA call would load CUDA.
std::vector<std::string> cuda_devices() {
  std::vector<std::string> models;
  std::error_code none;
  for (const auto& device : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none))
    models.push_back(field_of(device.path() / "information", "Model").value_or("unknown"));
  return models;
}

}  // namespace

Facts machine_facts() {
  utsname kernel = {};
  ::uname(&kernel);
  const sys::MemorySize memory = sys::memory_size();
  return {{"kernel", std::string(kernel.sysname) + " " + kernel.release},
          {"processor", or_null(field_of("/proc/cpuinfo", "model name"))},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"cores_usable", sys::usable_cores()},
          {"simd", machine_simd()},
          {"memory_bytes", memory.total},
          {"memory_free_bytes", memory.available},
          {"huge_pages", chosen("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"huge_pages_shared", chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled")},
          {"dev_shm_bytes", space("/dev/shm", false)},
          {"dev_shm_free_bytes", space("/dev/shm", true)},
          {"memfd", closes(::memfd_create("lockstep-info", MFD_CLOEXEC))},
          {"pidfd", closes(::syscall(SYS_pidfd_open, ::getpid(), 0))},
          {"cuda_devices", cuda_devices()}};
}

}  // namespace lockstep::apps
