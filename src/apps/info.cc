#include "apps/build_facts.h"
#include "apps/commands.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/program.h"
#include "sys/topology.h"

#include <hwy/targets.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

// Values are text, numbers, booleans, lists of text, or null if they could not be determined. Names
// that end in "_bytes" are numbers of bytes.
using Facts = nlohmann::ordered_json;

// In Highway's masks, a lower bit is a wider instruction set.
std::vector<std::string> names_of(std::uint64_t targets) {
  std::vector<std::string> names;
  for (; targets != 0; targets &= targets - 1) {
    const auto target = static_cast<std::int64_t>(std::uint64_t{1} << std::countr_zero(targets));
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

// Returns the instruction sets for which this build has kernels.
std::vector<std::string> compiled_simd() {
  return names_of(static_cast<std::uint64_t>(HWY_TARGETS));
}

// Returns the instruction sets of this host's processor.
std::vector<std::string> machine_simd() {
  return names_of(static_cast<std::uint64_t>(hwy::SupportedTargets()) &
                  static_cast<std::uint64_t>(HWY_ATTAINABLE_TARGETS));
}

std::vector<std::string> backends() {
  std::vector<std::string> names;
  if (*build::libtorch_version != '\0') names = {"local", "shm"};
  if (build::gloo) names.push_back("gloo");
  if (build::nccl) names.push_back("nccl");
  if (build::mpi) names.push_back("mpi");
  if (build::gloo || build::mpi) names.push_back("hierarchical");
  return names;
}

Facts text_or_null(const char* text) { return *text == '\0' ? Facts() : Facts(text); }

Facts build_facts() {
  return {{"version", build::version},
          {"compiler", build::compiler},
          {"type", build::type},
          {"system", build::system},
          {"libtorch", text_or_null(build::libtorch_version)},
          {"libtorch_folder", text_or_null(build::libtorch_folder)},
          {"cuda", build::cuda},
          {"backends", backends()},
          {"simd", compiled_simd()}};
}

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

std::string list(const Facts& values) {
  std::vector<std::string> words;
  for (const Facts& value : values) words.push_back(value.get<std::string>());
  return words.empty() ? "none" : join(words);
}

std::string for_people(const std::string& name, const Facts& value) {
  if (value.is_null()) return name.starts_with("libtorch") ? "none" : "unknown";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_array()) return list(value);
  if (name.ends_with("_bytes")) return format_bytes(value.get<std::int64_t>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string shown(const char* title, const Facts& facts) {
  std::string text = formatted("{}\n", title);
  for (const auto& [name, value] : facts.items()) {
    std::string label = name.ends_with("_bytes") ? name.substr(0, name.size() - 6) : name;
    std::replace(label.begin(), label.end(), '_', ' ');
    text += formatted("  {:<18} {}\n", label, for_people(name, value));
  }
  return text;
}

}  // namespace

int info_command(const std::vector<std::string>& words) {
  return sys::run_program("lockstep info", [&] {
    CommandOptions options("lockstep info", "[--json]",
                           "What this build has and what this machine offers.");
    bool json = false;
    options.add({"json", "", "print it as one JSON object"}, flag_into(json));
    if (const auto code = sys::answer(options.read(words), options)) return *code;
    const Facts build = build_facts(), machine = machine_facts();
    sys::write_out(json ? Facts{{"build", build}, {"machine", machine}}.dump(2) + "\n"
                        : shown("This build", build) + shown("This machine", machine));
    return 0;
  });
}

}  // namespace lockstep::apps
