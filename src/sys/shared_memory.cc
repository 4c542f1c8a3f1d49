#include "sys/shared_memory.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/signals.h"
#include "sys/whole_call.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <limits>
#include <utility>

#include <linux/futex.h>

namespace lockstep::sys {
namespace {

// If vm.memfd_noexec is 2, the kernel only creates memory that can never be executed; kernels
// before 6.3 do not support the flag for it.
FileDescriptor nameless_memory(const char* label) {
  constexpr unsigned never_executed = 8;  // MFD_NOEXEC_SEAL
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileDescriptor file(memfd_create(label, flags | never_executed));
  if (!file && errno == EINVAL) file = FileDescriptor(memfd_create(label, flags));
  if (!file) throw SystemError("making shared memory", errno);
  return file;
}

// Bits 21 to 27 of an address change different bits of the hash, so addresses that differ in
// nothing else have different hashes. The step is a multiple of a large page, and not a power of
// two: the step and the distance of two tensors, which often is one, must not add up to the period.
constexpr std::size_t place_period = std::size_t{256} << 20;
constexpr std::size_t place_step = std::size_t{90} << 20;

// Maps the file `place` steps after a multiple of the period; anywhere if there is not enough
// address space to choose.
void* map_at_place(int file, std::size_t bytes, int place) {
  constexpr int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_NORESERVE;
  constexpr int reserving = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t whole_pages = (bytes + page - 1) / page * page;
  void* range = mmap(nullptr, whole_pages + place_period, PROT_NONE, reserving, -1, 0);
  if (range == MAP_FAILED) return mmap(nullptr, bytes, protection, flags, file, 0);
  const std::size_t wanted = static_cast<std::size_t>(place) * place_step;
  const std::size_t found = reinterpret_cast<std::uintptr_t>(range) % place_period;
  const std::size_t before = (wanted + place_period - found) % place_period;
  auto* begin = static_cast<std::byte*>(range) + before;
  munmap(range, before);
  munmap(begin + whole_pages, place_period - before);
  void* address = mmap(begin, bytes, protection, flags | MAP_FIXED, file, 0);
  if (address == MAP_FAILED) munmap(begin, bytes);
  return address;
}

bool change_space(int file, int mode, std::size_t offset, std::size_t bytes) noexcept {
  return whole_call([&] {
           return fallocate(file, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0
                      ? 0
                      : errno;
         }) == 0;
}

}  // namespace

SharedMemory::SharedMemory(FileDescriptor file, std::size_t bytes, int place)
    : file_(std::move(file)) {
  void* address = map_at_place(file_.get(), bytes, place);
  if (address == MAP_FAILED) {
    throw SystemError(
        "mapping " + format_bytes(static_cast<std::int64_t>(bytes)) + " of shared memory", errno);
  }
  madvise(address, bytes, MADV_HUGEPAGE);  // usually refused, which is harmless
  memory_ = MappedMemory(static_cast<std::byte*>(address), {bytes});
}

std::size_t SharedMemory::most_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<std::int64_t>::max();
  return limit.rlim_cur;
}

std::size_t SharedMemory::address_space(std::size_t wanted) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (; wanted > 0; wanted /= 2) {
    void* address = mmap(nullptr, wanted, PROT_NONE, flags, -1, 0);
    if (address == MAP_FAILED) continue;
    munmap(address, wanted);
    break;
  }
  return wanted;
}

SharedMemory SharedMemory::create(const char* label, std::size_t bytes, int place) {
  FileDescriptor file = nameless_memory(label);
  const ScopedSignalBlock quiet(SIGXFSZ);
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    auto what =
        formatted("making {} of shared memory", format_bytes(static_cast<std::int64_t>(bytes)));
    if (errno == EFBIG) what += ", which counts as a file, under this process's limit (ulimit -f)";
    throw SystemError(what, errno);
  }
  // A peer that maps the memory must never access it beyond the end of a truncated file.
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw SystemError("sealing shared memory", errno);
  return {std::move(file), bytes, place};
}

SharedMemory SharedMemory::open(FileDescriptor file, std::size_t bytes, int place) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0)
    throw SystemError("looking at a peer's shared memory", errno);
  check_input(bytes > 0 && static_cast<std::size_t>(status.st_size) >= bytes,
              "shared memory of a peer: expected {} bytes, found {}", bytes, status.st_size);
  const int seals = fcntl(file.get(), F_GET_SEALS);
  check_input(seals >= 0 && (seals & F_SEAL_SHRINK) != 0,
              "shared memory of a peer: expected memory that cannot shrink");
  SharedMemory memory(std::move(file), bytes, place);
  madvise(memory.data(), bytes, MADV_DONTDUMP);
  return memory;
}

bool SharedMemory::punch(std::size_t offset, std::size_t bytes) const noexcept {
  return bytes == 0 ||
         change_space(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

bool SharedMemory::reserve(std::size_t offset, std::size_t bytes) const noexcept {
  return bytes == 0 || change_space(file_.get(), FALLOC_FL_KEEP_SIZE, offset, bytes);
}

void SharedMemory::keep_from_children() const noexcept { madvise(data(), bytes(), MADV_DONTFORK); }

std::size_t SharedMemory::resident_bytes() const {
  struct stat status {};
  return fstat(file_.get(), &status) == 0 ? static_cast<std::size_t>(status.st_blocks) * 512 : 0;
}

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Duration most) noexcept {
  most = std::clamp(most, Duration::zero(), Duration(std::chrono::hours(24)));
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  timespec left{static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count())};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &left, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep::sys
