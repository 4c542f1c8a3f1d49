// The files of what a run commits on one host. Each of two buffers is a checkpoint's folder
// (lockstep/checkpoint/training_state.h) that is written again and again in place, so
// that checkpoint::load() reads it; `control` says which of them is whole.
//
//   FOLDER/000000000003.0/         of round 3; the second number rises where parts change in it
//                         control  the marks below
//                         a/  b/   the buffers: model.safetensors, ..., layout.json
//
// A buffer is whole when all ranks have marked it with the same number: each rank takes its mark
// away, writes its parts, and marks it again. The newest whole buffer is the one with the highest
// number. While one is written the other one is whole, because a rank begins only when all have
// marked that.
#pragma once

#include "sys/file_descriptor.h"

#include <atomic>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

// Shared memory: a file that several processes map and write. Its space is reserved when it is
// made, so that a full disk is an error then and no SIGBUS later.
class SharedFile {
 public:
  SharedFile() = default;
  // SystemError names the file: no room, no permission.
  [[nodiscard]] static SharedFile make(const std::filesystem::path& path, std::size_t bytes);
  [[nodiscard]] static SharedFile open(const std::filesystem::path& path);
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&& other) noexcept;
  ~SharedFile();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // False if another program has removed, replaced or cut the file: what is written into it is lost
  // then, or a SIGBUS. True for an object without a file.
  [[nodiscard]] bool is_intact() const;

 private:
  SharedFile(const sys::FileDescriptor& file, std::filesystem::path path, std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::filesystem::path path_;
  std::uint64_t inode_ = 0;
};

inline constexpr int commit_buffers = 2;
[[nodiscard]] std::filesystem::path buffer_name(int buffer);  // "a", "b"

// The marks of all ranks on both buffers.
class CommitControl {
 public:
  CommitControl() = default;
  [[nodiscard]] static CommitControl make(const std::filesystem::path& folder, int ranks);
  // BadInput where it is no such file.
  [[nodiscard]] static CommitControl open(const std::filesystem::path& folder);

  [[nodiscard]] int ranks() const;
  void mark(int buffer, int rank, std::int64_t number) {
    at(buffer, rank).store(number, std::memory_order_release);
  }
  void unmark(int buffer, int rank) { mark(buffer, rank, 0); }
  // The number that all ranks have marked it with; 0 where they have not.
  [[nodiscard]] std::int64_t whole(int buffer) const;
  [[nodiscard]] bool is_intact() const { return file_.is_intact(); }

 private:
  explicit CommitControl(SharedFile file) : file_(std::move(file)) {}
  [[nodiscard]] std::atomic<std::int64_t>& at(int buffer, int rank) const;

  SharedFile file_;
};

// Which commit it is: of two, the later one is the greater.
struct CommitNumber {
  std::int64_t round = -1, generation = 0, number = 0;
  auto operator<=>(const CommitNumber&) const = default;
};

struct FoundCommit {
  std::filesystem::path generation;  // "FOLDER/000000000003.0"
  int buffer = 0;
  CommitNumber number = {};
};

// Local; changes nothing. What no file says is passed over: a round that ended before its first
// commit has none.
[[nodiscard]] std::optional<FoundCommit> newest_commit(const std::filesystem::path& folder);

// Removes all generations but that of `kept`, and of that what is not the whole buffer.
void remove_but(const std::filesystem::path& folder, const std::optional<FoundCommit>& kept);
// Removes all generations before that one.
void remove_before(const std::filesystem::path& folder, const std::filesystem::path& generation);

[[nodiscard]] std::string generation_name(std::int64_t round, std::int64_t generation);

}  // namespace lockstep
