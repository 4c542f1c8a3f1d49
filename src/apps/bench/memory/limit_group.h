// A control group below this process's own that limits the memory of the processes in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::apps {

// The folder of this process's memory control group, of version 1 or 2, by what /proc/self/cgroup
// says; nothing where there is none.
struct MemoryControl {
  std::filesystem::path folder;
  bool unified = false;  // version 2
};
[[nodiscard]] std::optional<MemoryControl> memory_control(std::string_view proc_self_cgroup);

class LimitGroup {
 public:
  // Makes the group. SystemError where this process may not, or has no such controller.
  LimitGroup(const MemoryControl& parent, const std::string& name, std::int64_t bytes);
  LimitGroup(LimitGroup&& other) noexcept;
  LimitGroup& operator=(LimitGroup&&) = delete;
  // Removes it; all processes in it must have ended.
  ~LimitGroup();

  // A process that writes its number here is limited from then on.
  [[nodiscard]] std::filesystem::path members() const { return folder_ / "cgroup.procs"; }
  // The most bytes that were charged to it at once.
  [[nodiscard]] std::int64_t peak() const;

 private:
  std::filesystem::path folder_;
  bool unified_;
};

}  // namespace lockstep::apps
