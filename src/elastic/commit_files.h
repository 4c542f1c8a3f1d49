// The files of a run's commits on one host. There are two buffers. Each is a checkpoint folder
// (lockstep/checkpoint/training_state.h) that is rewritten in place, so that checkpoint::load() can
// read it; the file `control` says which buffers are whole.
//
//   FOLDER/000000000003.0/         of round 3; the second number rises if parts change during it
//                         control  the marks below
//                         a/  b/   the buffers: model.safetensors, ..., layout.json
//
// A buffer is whole if all ranks have marked it with the same number: each rank removes its mark,
// writes its parts, and sets the next mark. The newest whole buffer is the one with the highest
// number. While one buffer is written, the other buffer is whole, because a rank starts to write
// only after all ranks have marked the other buffer.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/folders.h"
#include "checkpoint/write_plan.h"
#include "sys/file_descriptor.h"

#include <lockstep/comm/group.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// Shared memory: a file that several processes map and write. Its space is reserved at creation, so
// that a full disk causes an error then, and no SIGBUS later.
class SharedFile {
 public:
  SharedFile() = default;
  // Throws SystemError, which names the file, if there is no room or no permission.
  [[nodiscard]] static SharedFile make(const std::filesystem::path& path, std::size_t bytes);
  [[nodiscard]] static SharedFile open(const std::filesystem::path& path);

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t bytes() const { return data_.get_deleter().bytes; }
  // Returns false if another program has removed, replaced or truncated the file: writes to it are
  // then lost or raise SIGBUS. Returns true for an object without a file.
  [[nodiscard]] bool is_intact() const;

 private:
  SharedFile(const sys::FileDescriptor& file, std::filesystem::path path, std::size_t bytes);

  sys::MappedMemory data_;
  std::filesystem::path path_;
  std::uint64_t inode_ = 0;
};

inline constexpr int commit_buffers = 2;
[[nodiscard]] std::filesystem::path buffer_name(int buffer);  // "a", "b"

// The marks of all ranks for both buffers.
class CommitControl {
 public:
  CommitControl() = default;
  [[nodiscard]] static CommitControl make(const std::filesystem::path& folder, int ranks);
  // Throws BadInput if the file is not a control file.
  [[nodiscard]] static CommitControl open(const std::filesystem::path& folder);

  [[nodiscard]] int ranks() const;
  void mark(int buffer, int rank, std::int64_t number) {
    at(buffer, rank).store(number, std::memory_order_release);
  }
  void unmark(int buffer, int rank) { mark(buffer, rank, 0); }
  // Returns the number with which all ranks have marked the buffer, or 0 if their marks differ.
  [[nodiscard]] std::int64_t whole(int buffer) const;
  [[nodiscard]] bool is_intact() const { return file_.is_intact(); }

 private:
  explicit CommitControl(SharedFile file) : file_(std::move(file)) {}
  [[nodiscard]] std::atomic<std::int64_t>& at(int buffer, int rank) const;

  SharedFile file_;
};

// Identifies a commit; a later commit compares greater.
struct CommitNumber {
  std::int64_t round = -1, generation = 0, number = 0;
  auto operator<=>(const CommitNumber&) const = default;
};

struct FoundCommit {
  std::filesystem::path generation;  // "FOLDER/000000000003.0"
  int buffer = 0;
  CommitNumber number = {};
};

// Finds the newest commit. Local; changes nothing. Unreadable generations are skipped: a round that
// ended before its first commit has no whole buffer.
[[nodiscard]] std::optional<FoundCommit> newest_commit(const std::filesystem::path& folder);

// Removes all generations except that of `kept`, and everything in that generation except the whole
// buffer.
void remove_but(const std::filesystem::path& folder, const std::optional<FoundCommit>& kept);
// Removes all generations before `generation`.
void remove_before(const std::filesystem::path& folder, const std::filesystem::path& generation);

[[nodiscard]] std::string generation_name(std::int64_t round, std::int64_t generation);

// CommitFile: one safetensors file of a run's commit. Every rank writes its own boxes in place.
class CommitFile {
 public:
  // Plans which rank writes which boxes. Collective. Throws CollectiveFailure for parts that cannot
  // be saved.
  CommitFile(std::string name, Group& group, const std::vector<checkpoint::FilePart>& parts);

  // Returns true if the parts have the positions, shapes and dtypes for which the plan was made.
  [[nodiscard]] bool fits(const std::vector<checkpoint::FilePart>& parts) const;
  // As in a checkpoint folder, ignored tensors and the program's own tensors have files only if
  // there are any such tensors.
  [[nodiscard]] bool is_wanted() const {
    return !plan_.shards.front().entries.empty() || name_ == checkpoint::model_file ||
           name_ == checkpoint::optimizer_file;
  }

  // Local. make() creates the file of a buffer; one rank calls it before the others open() the
  // file. Throws SystemError.
  void make(int buffer, const std::filesystem::path& folder);
  void open(int buffer, const std::filesystem::path& folder);
  // Checks SharedFile::is_intact() of both buffers.
  [[nodiscard]] bool is_intact() const {
    return std::ranges::all_of(files_, &SharedFile::is_intact);
  }
  // Copies this rank's elements into the buffer. Local.
  void write(int buffer, const std::vector<checkpoint::FilePart>& parts);

 private:
  std::string name_;
  std::vector<Part> parts_;
  checkpoint::WritePlan plan_;        // with this rank's boxes
  std::vector<std::size_t> part_of_;  // of each box
  std::string header_;
  std::array<SharedFile, commit_buffers> files_;
};

}  // namespace lockstep
