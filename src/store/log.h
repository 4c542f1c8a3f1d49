// The log of a store: everything that a restarted server needs to continue as the same store.
//
//   file    := "LSLOG001"  store[16]  check[8]  { record }
//   record  := length:u32  hash[8]  check[4]  payload[length]
//   payload := a message as in wire.h:
//                set    parts: key value
//                erase  parts: key
//                done, refused
//                       the reply to request `id` of a session; parts: session, and its own
//
// `store` identifies the store: reconnecting clients compare it. `hash` is BLAKE2b of the payload.
// Each `check` is BLAKE2b of the bytes before it: of "LSLOG001" and `store` for the file, of length
// and hash for a record. Numbers are little-endian.
//
// Records are only appended, and each is on disk before the client gets its reply. If a server is
// killed while it writes, the last record is incomplete or, after a power failure, zeros; it is
// truncated. Any other error means that the log is damaged, and the server refuses to start.
#pragma once

#include "store/table.h"
#include "sys/file_descriptor.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::store {

inline constexpr std::string_view log_magic = "LSLOG001";
inline constexpr std::size_t store_name_bytes = 16;

// Returns a name that is unique among stores.
[[nodiscard]] std::string random_store_name();

class Log {
 public:
  // Creates the file (mode 600) with a new store name, or reads it into `table` and `sessions`,
  // which must outlive the log. Throws BadInput if another process holds the file, or if the file
  // is not a log or is damaged (the message gives the byte offset). Throws SystemError if the file
  // cannot be read or written.
  Log(std::filesystem::path file, Table& table, Sessions& sessions);

  [[nodiscard]] const std::string& store_name() const { return store_name_; }

  // Records the current value of `key` in the table, or that it has none.
  void note_key(std::string_view key);
  // Records a reply that the sessions have just stored.
  void note_reply(std::string_view session, const Message& reply);
  // Writes the recorded changes and waits for the disk. Throws SystemError if the write fails: the
  // changes may be lost, so the server must not send any more replies.
  void commit();

 private:
  [[nodiscard]] bool open_and_lock();
  void read(const std::string& content);
  void apply(const Message& record);
  void append(const Message& record);
  void write_anew();
  [[nodiscard]] std::string header() const;

  std::filesystem::path path_;
  Table& table_;
  Sessions& sessions_;
  sys::PrivateDescriptor file_;
  std::string store_name_;
  std::string pending_;
  std::uint64_t size_ = 0;        // of the file
  std::uint64_t least_size_ = 0;  // size after the last compaction
};

}  // namespace lockstep::store
