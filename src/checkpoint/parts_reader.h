// Reads a safetensors file, or the shards that its index names, into the parts of the tensors that
// ranks have. Each rank reads the bytes of its own parts, directly into a part if the part's memory
// has the file's order.
//
// Rank 0 must see the files. A rank that does not see the same files gets its parts from rank 0, a
// few megabytes at a time. With a group of one rank everything is local.
//
// Bytes are read, not mapped, so that a truncated file or a failing disk causes an exception
// instead of SIGBUS.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/tensor_files.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <lockstep/comm/group.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace lockstep::checkpoint {

// How the files that a rank sees under this path relate to the files of rank 0.
enum class SeenFiles {
  unknown,  // missing or other files are ignored; a read error is thrown
  same,     // rank 0's files or copies of them: any difference is damage
  others    // another checkpoint's, or none: not opened
};

class PartsReader : public TensorFiles {
 public:
  // Collective. Gives rank 0's headers to every rank and checks them. Throws CollectiveFailure on
  // every rank if a file is missing or invalid, or if shards do not match their index.
  PartsReader(Group& group, const std::filesystem::path& path, SeenFiles seen = SeenFiles::unknown);

  [[nodiscard]] Group& group() const { return group_; }

  // Collective. Compares the checksums: ranks that see the same copy of the files divide its bytes
  // among them, so that it is read once. Throws CollectiveFailure, which names the damaged tensor.
  void verify();

  // Collective. The files must have a tensor of each name, with the slice's sizes and the tensor's
  // dtype. Calls `after_each` for each of this rank's parts when it is filled. Throws
  // CollectiveFailure if a file cannot be read; parts that were filled before keep the new values.
  using AfterEach = std::function<void(const Part&)>;
  void read(const std::vector<Part>& parts, const AfterEach& after_each = {});

  // Combines verify() and read(). If the parts of the ranks that share a copy cover a tensor, each
  // rank computes checksums while it reads its parts, and the tensor is read once; other tensors
  // are first read for verification. Throws CollectiveFailure, which names the damaged tensor;
  // parts may be filled in that case.
  void read_and_verify(const std::vector<Part>& parts, const AfterEach& after_each = {});

  // Not collective; for a rank that sees the files. Returns a whole tensor, after comparing its
  // checksum if it has one. Throws BadInput and SystemError.
  [[nodiscard]] at::Tensor read_whole(const TensorEntry& entry);
  // Reads some bytes of the tensor, from `offset` on.
  void read_bytes(const TensorEntry& entry, std::uint64_t offset, std::span<std::byte> bytes);

  // Not collective. Return the tensor bytes that this rank has read for parts (its own, and those
  // of ranks that do not see the files), and the bytes that it has read only to compare checksums.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
  [[nodiscard]] std::uint64_t bytes_verified() const { return bytes_verified_; }

  // Runs `check`; adds path() to the front of its BadInput errors.
  void in_file(const std::function<void()>& check) const;

 private:
  // The checksums that a rank computes while it reads its parts.
  struct SummedParts {
    std::vector<bool> tensors;          // by entry: true if the parts cover it
    std::vector<bool> own;              // by part of this rank: true if summed
    std::vector<std::uint32_t> shares;  // by entry
  };

  void open_same(SeenFiles seen);
  void exchange_copies();
  [[nodiscard]] std::vector<std::vector<Part>> exchange(const std::vector<Part>& parts);
  [[nodiscard]] bool sees() const { return shards().front().file.has_value(); }
  // A range of a tensor in its file, to be read to `bytes`.
  struct Stretch {
    const TensorEntry* entry = nullptr;
    std::uint64_t offset = 0;
    std::span<std::byte> bytes;
    std::uint32_t* share = nullptr;  // their share of the checksum, or null
    bool is_read_again = false;      // soon: keep the bytes in the cache
  };
  void read_stretches(std::span<const Stretch> stretches);
  void read_waiting();
  [[nodiscard]] std::span<std::byte> staging_of(std::size_t worker);
  [[nodiscard]] static Stretch stretch_of(const TensorEntry& entry, const layout::Box& run,
                                          const at::Tensor& dense, std::uint32_t* share = nullptr);
  void fill_own(const Part& part, std::uint32_t* share);
  void serve(int rank, const Part& part, std::exception_ptr& error);
  void receive(const Part& part);
  void read_parts(const std::vector<Part>& parts, const AfterEach& after_each,
                  const std::vector<std::vector<Part>>& wanted, SummedParts* summed);

  // Small enough to stay in a core's own cache between reading and computing the checksum.
  static constexpr std::size_t read_at_once = std::size_t{256} << 10;
  // This rank's share of each tensor's checksum, by entry.
  using Shares = std::vector<std::uint32_t>;
  [[nodiscard]] Shares own_shares(const std::vector<bool>& are_passed_over);
  void compare_all(const Shares& own);
  [[nodiscard]] SummedParts to_sum(const std::vector<std::vector<Part>>& wanted) const;

  Group& group_;
  // By rank: no_copy if the rank does not see the files, otherwise the number of the copy that it
  // reads. Hosts without a shared disk have separate copies.
  static constexpr std::int64_t no_copy = 0;
  std::vector<std::int64_t> copies_;
  std::vector<Stretch> waiting_;  // to be read together
  std::vector<std::byte> staging_;
  std::uint64_t bytes_read_ = 0, bytes_verified_ = 0;
};

}  // namespace lockstep::checkpoint
