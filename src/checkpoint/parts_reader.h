// Reads one safetensors file into the parts that ranks have of its tensors: each rank reads the
// bytes of its own parts, into them where they lie so.
//
// Rank 0 must see the file. A rank that does not see the same file gets its parts from rank 0, a
// few megabytes at a time. With a group of one rank everything is local.
//
// Bytes are read, not mapped: a file that becomes shorter or a disk that fails is an error then,
// and no signal.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/safetensors_header.h"
#include "sys/plain_file.h"

#include <lockstep/comm/together.h>

#include <lockstep/comm/group.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

class PartsReader {
 public:
  // Collective: rank 0's header on every rank, checked. CommonFailure on every rank for a file that
  // is not there or makes no sense.
  PartsReader(Group& group, std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] Group& group() const { return group_; }
  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  // The number of each entry of the header.
  [[nodiscard]] const std::map<std::string, std::size_t>& by_name() const { return by_name_; }
  // Null when there is none.
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;

  // Collective: the ranks that read one copy of the file read it once between them, and the
  // checksums are compared. CommonFailure names the tensor that is damaged.
  void verify();

  // Collective. The header has each name, with the slice's sizes and the tensor's dtype.
  // `after_each` is told of each of this rank's parts when it is filled. CommonFailure when a file
  // cannot be read; parts that were filled stay so.
  void read(const std::vector<PartToFill>& parts,
            const std::function<void(const PartToFill&)>& after_each = {});

  // Runs `check`; a BadInput of it begins with the file's path.
  void in_file(const std::function<void()>& check) const;

 private:
  [[nodiscard]] std::string read_header_text();
  void read_at(std::uint64_t offset, std::span<std::byte> bytes, const std::string& name);
  void fill_own(const PartToFill& part);
  void serve(int rank, const PartDescription& part, std::exception_ptr& error);
  void receive(const PartToFill& part);
  [[nodiscard]] std::vector<std::int64_t> own_shares();
  void add_share(const TensorEntry& entry, std::uint64_t begin, std::uint64_t end,
                 std::uint32_t& checksum);

  Group& group_;
  const std::filesystem::path path_;
  std::optional<sys::PlainFile> file_;  // where this rank sees it
  // By rank: 0 where it does not see the file, else a number for the copy that it reads. Hosts
  // without a common disk have copies.
  std::vector<std::int64_t> copies_;
  std::uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t> by_name_;
  std::vector<std::byte> staging_;
};

}  // namespace lockstep::checkpoint
