#include "support/accelerator/memory.h"

#include <array>
#include <atomic>
#include <csignal>
#include <stdexcept>
#include <utility>

#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

// ThreadSanitizer does not know that Memory::handle() may call functions that are not
// async-signal-safe.
extern "C" const char* __tsan_default_options() { return "report_signal_unsafe=0"; }

namespace lockstep::test::accelerator {
namespace {

Memory* the_memory = nullptr;  // for the signal handler
struct sigaction earlier_action;
std::array<std::atomic<char*>, 64> touched_pages{};

char* map_shared(int file, std::size_t bytes, int protection) {
  void* address =
      ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, /*offset=*/0);
  if (address == MAP_FAILED) throw std::runtime_error("simulated accelerator: cannot map memory");
  return static_cast<char*>(address);
}

}  // namespace

Memory::Mapping::Mapping(std::size_t size, int host_protection) : bytes(size) {
  const int file = ::memfd_create("simulated accelerator", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0)
    throw std::runtime_error("simulated accelerator: cannot create its memory file");
  host = map_shared(file, bytes, host_protection);
  kernels = map_shared(file, bytes, PROT_READ | PROT_WRITE);
  ::close(file);
}

bool Memory::Mapping::has(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  return byte >= host && byte < host + bytes;
}

Memory::Memory(OnTouch on_touch)
    : device_(device_count * device_bytes, PROT_NONE),
      pinned_(pinned_bytes, PROT_READ | PROT_WRITE),
      on_touch_(std::move(on_touch)) {
  the_memory = this;
  struct sigaction action {};
  action.sa_sigaction = &Memory::handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGSEGV, &action, &earlier_action);
}

bool Memory::is_device(const void* address) const { return device_.has(address); }
bool Memory::is_pinned(const void* address) const { return pinned_.has(address); }

std::size_t Memory::offset_of(const void* device_address) const {
  return static_cast<std::size_t>(static_cast<const char*>(device_address) - device_.host);
}

std::size_t Memory::pinned_offset_of(const void* address) const {
  return static_cast<std::size_t>(static_cast<const char*>(address) - pinned_.host);
}

void* Memory::kernel_address(const void* address) const {
  if (address == nullptr) return nullptr;
  if (is_pinned(address)) return pinned_.kernels + pinned_offset_of(address);
  if (!is_device(address)) return const_cast<void*>(address);  // of a tensor without elements
  return device_.kernels + offset_of(address);
}

void Memory::protect_pinned(std::size_t offset, std::size_t bytes, Access access) {
  constexpr int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
  ::mprotect(pinned_.host + offset, bytes, protections[static_cast<int>(access)]);
}

void Memory::close_touched() {
  for (auto& page : touched_pages)
    if (char* address = page.exchange(nullptr)) ::mprotect(address, page_bytes, PROT_NONE);
}

// The fault is synchronous and never occurs while the machine's locks are held, because the machine
// itself never uses these addresses. So this handler may call functions that are not
// async-signal-safe.
void Memory::handle(int, siginfo_t* info, void*) {
  auto& memory = *the_memory;
  const bool is_device = memory.is_device(info->si_addr);
  if (!is_device && !memory.is_pinned(info->si_addr)) {
    ::sigaction(SIGSEGV, &earlier_action, nullptr);  // the access is repeated and reaches it
    return;
  }
  memory.on_touch_(info->si_addr);
  std::array<void*, 24> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), STDERR_FILENO);
  auto* page = static_cast<char*>(info->si_addr) -
               reinterpret_cast<std::uintptr_t>(info->si_addr) % page_bytes;
  ::mprotect(page, page_bytes, PROT_READ | PROT_WRITE);
  if (!is_device) return;
  for (auto& place : touched_pages) {
    char* empty = nullptr;
    if (place.compare_exchange_strong(empty, page)) return;
  }
}

}  // namespace lockstep::test::accelerator
