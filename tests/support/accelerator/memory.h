// The address space of the simulated accelerator. Every page is mapped twice: hosts get addresses
// of a mapping that they cannot access (device memory) or cannot access while a copy is in flight
// (pinned memory), and kernels use the other mapping. A host that touches a closed page gets a
// report and a backtrace on standard error; the page is then opened, so that the test goes on.
#pragma once

#include "support/accelerator/clock.h"

#include <cstddef>
#include <functional>
#include <string>

#include <csignal>

namespace lockstep::test::accelerator {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t device_bytes = std::size_t{1} << 30;  // pages are taken when touched

class Memory {
 public:
  // Maps the memory and installs a handler of SIGSEGV, which calls on_touch for an access to a
  // closed page.
  using OnTouch = std::function<void(const void* address)>;
  explicit Memory(OnTouch on_touch);

  [[nodiscard]] bool is_device(const void* address) const;
  [[nodiscard]] bool is_pinned(const void* address) const;
  // Device memory is addressed by offsets: device d begins at d * device_bytes.
  [[nodiscard]] std::size_t offset_of(const void* device_address) const;
  [[nodiscard]] void* device_address(std::size_t offset) const { return device_.host + offset; }
  [[nodiscard]] std::size_t pinned_offset_of(const void* address) const;
  [[nodiscard]] void* pinned_address(std::size_t offset) const { return pinned_.host + offset; }
  // The same byte in the mapping of the kernels; null stays null.
  [[nodiscard]] void* kernel_address(const void* address) const;

  enum class Access { none, read, write };
  // Sets the access that hosts have to whole pages of pinned memory.
  void protect_pinned(std::size_t offset, std::size_t bytes, Access access);
  // Closes the device pages that a touch has opened.
  void close_touched();

 private:
  struct Mapping {
    Mapping(std::size_t size, int host_protection);
    [[nodiscard]] bool has(const void* address) const;
    std::size_t bytes;
    char* host = nullptr;
    char* kernels = nullptr;
  };

  static void handle(int signal, siginfo_t* info, void* context);

  Mapping device_;
  Mapping pinned_;
  OnTouch on_touch_;
};

}  // namespace lockstep::test::accelerator
