// The address space of the simulated accelerator. Every page is mapped twice. Kernels use one
// mapping. Hosts get addresses in the other mapping, which they can never access (device memory) or
// cannot access while a copy is in flight (pinned memory). If a host touches a closed page, a
// report is made and a backtrace is printed on standard error; the page is then opened, so that the
// test continues.
#pragma once

#include "support/accelerator/clock.h"

#include <cstddef>
#include <functional>
#include <string>

#include <csignal>

namespace lockstep::test::accelerator {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t device_bytes = std::size_t{1} << 30;  // pages are allocated on first use
constexpr std::size_t pinned_bytes = 4 * device_bytes;      // many sizes come and go in one program

// Accesses name bytes of pinned memory by offsets that follow those of device memory.
constexpr std::size_t first_pinned_offset = device_count * device_bytes;
[[nodiscard]] constexpr bool is_pinned_offset(std::size_t offset) {
  return offset >= first_pinned_offset && offset < first_pinned_offset + pinned_bytes;
}

class Memory {
 public:
  // Maps the memory and installs a SIGSEGV handler that calls on_touch for an access to a closed
  // page.
  using OnTouch = std::function<void(const void* address)>;
  explicit Memory(OnTouch on_touch);

  [[nodiscard]] bool is_device(const void* address) const;
  [[nodiscard]] bool is_pinned(const void* address) const;
  // Device memory is addressed by offsets: device d begins at d * device_bytes.
  [[nodiscard]] std::size_t offset_of(const void* device_address) const;
  [[nodiscard]] void* device_address(std::size_t offset) const { return device_.host + offset; }
  [[nodiscard]] std::size_t pinned_offset_of(const void* address) const;
  [[nodiscard]] void* pinned_address(std::size_t offset) const { return pinned_.host + offset; }
  // Returns the address of the same byte in the kernels' mapping; null for null.
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
