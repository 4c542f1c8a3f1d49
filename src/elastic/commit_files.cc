#include "elastic/commit_files.h"

#include "base/check.h"
#include "base/text.h"
#include "checkpoint/safetensors_header.h"
#include "module/tensors.h"
#include "parallel/state_dict.h"
#include "sys/mapped_file.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* control_file = "control";
constexpr std::int64_t magic = 0x314d4d4f434b434c;  // "LCKCOMM1"
constexpr std::size_t line = 64;  // a cache line: no two ranks write into the same one
constexpr int most_ranks = 1 << 20;

std::byte* mapped(const sys::FileDescriptor& file, const fs::path& path, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) throw SystemError("mapping " + path.string(), errno);
  return static_cast<std::byte*>(data);
}

std::size_t control_bytes(int ranks) {
  return line * (1 + static_cast<std::size_t>(commit_buffers) * static_cast<std::size_t>(ranks));
}

// Returns all generations, oldest first. Sorting by name works because the numbers have equal
// lengths.
std::vector<fs::path> generations(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.is_directory(none)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

// Returns the newest whole buffer, or std::nullopt if there is no whole buffer.
std::optional<FoundCommit> whole_buffer(const fs::path& generation) {
  try {
    const CommitControl control = CommitControl::open(generation);
    const std::int64_t a = control.whole(0), b = control.whole(1);
    if (a == 0 && b == 0) return std::nullopt;
    const std::string name = generation.filename().string();
    const std::size_t point = name.find('.');
    const auto round = parse_integer(name.substr(0, point));
    const auto count =
        parse_integer(point == std::string::npos ? std::string() : name.substr(point + 1));
    if (!round || !count) return std::nullopt;
    return FoundCommit{generation, a > b ? 0 : 1, {*round, *count, std::max(a, b)}};
  } catch (const Error&) {
    return std::nullopt;
  }
}

using checkpoint::FilePart;

bool are_alike(const FilePart& file, const Part& part) {
  return file.part.name == part.name && file.part.slice == part.slice &&
         file.part.kind == part.kind && file.dtype() == part.tensor.scalar_type();
}

// A rank may have several parts of one tensor, for example of a fused weight under tensor
// parallelism.
std::size_t part_with(const std::vector<Part>& parts, const std::string& name,
                      const layout::Box& box) {
  const auto holds = [&](const Part& part) {
    return part.name == name &&
           std::ranges::any_of(layout::boxes_of(part.slice),
                               [&](const layout::Box& own) { return layout::contains(own, box); });
  };
  return static_cast<std::size_t>(std::ranges::find_if(parts, holds) - parts.begin());
}

}  // namespace

SharedFile SharedFile::make(const fs::path& path, std::size_t bytes) {
  constexpr mode_t owner_alone = 0600;
  sys::FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, owner_alone));
  if (!file) throw SystemError("making " + path.string(), errno);
  const std::size_t least = std::max<std::size_t>(bytes, 1);
  if (const int error = sys::take_space(file.get(), least); error != 0) {
    ::unlink(path.c_str());
    throw SystemError(formatted("reserving {} bytes for {}", least, path.string()), error);
  }
  return {file, path, least};
}

SharedFile SharedFile::open(const fs::path& path) {
  sys::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file) throw SystemError("opening " + path.string(), errno);
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) throw SystemError("looking at " + path.string(), errno);
  check_input(found.st_size > 0, "{}: expected a file of commits, found an empty one",
              path.string());
  const auto bytes = static_cast<std::size_t>(found.st_size);
  return {file, path, bytes};
}

SharedFile::SharedFile(const sys::FileDescriptor& file, fs::path path, std::size_t bytes)
    : data_(mapped(file, path, bytes), sys::Unmap{bytes}), path_(std::move(path)) {
  struct stat found {};
  if (::fstat(file.get(), &found) == 0) inode_ = found.st_ino;
}

bool SharedFile::is_intact() const {
  struct stat found {};
  return data_ == nullptr || (::lstat(path_.c_str(), &found) == 0 && found.st_ino == inode_ &&
                              found.st_size == static_cast<off_t>(bytes()));
}

fs::path buffer_name(int buffer) { return buffer == 0 ? "a" : "b"; }

CommitControl CommitControl::make(const fs::path& folder, int ranks) {
  CommitControl control(SharedFile::make(folder / control_file, control_bytes(ranks)));
  auto* words = reinterpret_cast<std::int64_t*>(control.file_.data());
  words[1] = ranks;
  std::atomic_ref(words[0]).store(magic, std::memory_order_release);
  return control;
}

CommitControl CommitControl::open(const fs::path& folder) {
  CommitControl control(SharedFile::open(folder / control_file));
  auto* words = reinterpret_cast<std::int64_t*>(control.file_.data());
  const bool is_control = control.file_.bytes() >= line && words[0] == magic && words[1] > 0 &&
                          words[1] <= most_ranks &&
                          control.file_.bytes() == control_bytes(static_cast<int>(words[1]));
  check_input(is_control, "{}: expected the header of a file of commits, found other bytes",
              (folder / control_file).string());
  return control;
}

int CommitControl::ranks() const {
  return static_cast<int>(reinterpret_cast<const std::int64_t*>(file_.data())[1]);
}

std::atomic<std::int64_t>& CommitControl::at(int buffer, int rank) const {
  const std::size_t place = 1 + static_cast<std::size_t>(buffer) * ranks() + rank;
  return *reinterpret_cast<std::atomic<std::int64_t>*>(file_.data() + line * place);
}

std::int64_t CommitControl::whole(int buffer) const {
  const std::int64_t number = at(buffer, 0).load(std::memory_order_acquire);
  for (int rank = 1; rank < ranks(); ++rank)
    if (at(buffer, rank).load(std::memory_order_acquire) != number) return 0;
  return number;
}

std::optional<FoundCommit> newest_commit(const fs::path& folder) {
  std::vector<fs::path> all = generations(folder);
  std::ranges::reverse(all);
  for (const fs::path& generation : all)
    if (std::optional<FoundCommit> found = whole_buffer(generation)) return found;
  return std::nullopt;
}

void remove_but(const fs::path& folder, const std::optional<FoundCommit>& kept) {
  std::error_code nothing_more_to_do;
  for (const fs::path& generation : generations(folder))
    if (!kept || generation != kept->generation) fs::remove_all(generation, nothing_more_to_do);
  if (!kept) return;
  CommitControl control = CommitControl::open(kept->generation);
  for (int rank = 0; rank < control.ranks(); ++rank) control.unmark(1 - kept->buffer, rank);
  fs::remove_all(kept->generation / buffer_name(1 - kept->buffer), nothing_more_to_do);
}

void remove_before(const fs::path& folder, const fs::path& generation) {
  std::error_code nothing_more_to_do;
  for (const fs::path& older : generations(folder))
    if (older < generation) fs::remove_all(older, nothing_more_to_do);
}

std::string generation_name(std::int64_t round, std::int64_t generation) {
  return formatted("{:012}.{:06}", round, generation);
}

CommitFile::CommitFile(std::string name, Group& group, const std::vector<FilePart>& parts)
    : name_(std::move(name)), parts_(checkpoint::parts_of(parts)) {
  const auto by_rank = parallel::exchange_parts(group, parts_);
  run_on_all_or_fail(group, [&] {
    plan_ = checkpoint::plan_writing(by_rank, {}, checkpoint::only(group), {.files = 1});
    checkpoint::SafetensorsHeader& header = plan_.shards.front();
    // A file that is rewritten in each step has no checksums: its data passes through memory only.
    header.metadata = checkpoint::without_checksums(std::move(header.metadata));
    header_ = checkpoint::format_header(header);
    for (const checkpoint::PlannedBox& box : plan_.boxes)
      part_of_.push_back(part_with(parts_, plan_.entry(box).name, box.box));
  });
}

bool CommitFile::fits(const std::vector<FilePart>& parts) const {
  return std::ranges::equal(parts, parts_, are_alike);
}

void CommitFile::make(int buffer, const std::filesystem::path& folder) {
  const std::uint64_t length = header_.size();
  const auto& entries = plan_.shards.front().entries;
  const std::uint64_t data = entries.empty() ? 0 : entries.back().end;
  SharedFile file = SharedFile::make(folder / name_, sizeof length + length + data);
  std::memcpy(file.data(), &length, sizeof length);
  std::memcpy(file.data() + sizeof length, header_.data(), header_.size());
  files_[static_cast<std::size_t>(buffer)] = std::move(file);
}

void CommitFile::open(int buffer, const std::filesystem::path& folder) {
  files_[static_cast<std::size_t>(buffer)] = SharedFile::open(folder / name_);
}

void CommitFile::write(int buffer, const std::vector<FilePart>& parts) {
  at::NoGradGuard no_grad;
  std::byte* data =
      files_[static_cast<std::size_t>(buffer)].data() + sizeof(std::uint64_t) + header_.size();
  at::Tensor values;
  std::size_t values_of = parts.size();  // no part yet
  for (std::size_t i = 0; i < plan_.boxes.size(); ++i) {
    const checkpoint::PlannedBox& box = plan_.boxes[i];
    const checkpoint::TensorEntry& entry = plan_.entry(box);
    if (values_of != part_of_[i]) values = parts[values_of = part_of_[i]].values();
    const at::Tensor whole = at::from_blob(data + entry.begin, entry.shape, entry.dtype);
    modules::box_in_whole(whole, box.box)
        .copy_(checkpoint::view_of(values, parts_[values_of].slice, box.box));
  }
}

}  // namespace lockstep
