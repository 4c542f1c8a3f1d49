// The log of a store: what a server that is started anew needs to go on as the same store.
//
//   file    := "LSLOG001"  store[16]  check[8]  { record }
//   record  := length:u32  hash[8]  check[4]  payload[length]
//   payload := a message as in wire.h:
//                set    parts: key value
//                erase  parts: key
//                done, refused
//                       the reply to request `id` of a session; parts: session, and its own
//
// `store` names the store: clients that come back compare it. `hash` is BLAKE2b of the payload;
// the checks are BLAKE2b of the bytes before them, the file's of "LSLOG001" and `store`, a record's
// of length and hash. Numbers are little-endian.
//
// Records are only appended, and on the disk before a client has its reply. A server that was
// killed while it wrote leaves a last record that is not whole, or, after a power cut, zeros: they
// are cut off. Anything else that is wrong is damage, and no store is served.
#pragma once

#include "store/sessions.h"
#include "store/table.h"
#include "sys/file_descriptor.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::store {

inline constexpr std::string_view log_magic = "LSLOG001";
inline constexpr std::size_t store_name_bytes = 16;

// A name that no other store has.
[[nodiscard]] std::string random_store_name();

class Log {
 public:
  // Makes the file (mode 600) with a fresh store name, or reads it into the table and the sessions,
  // which outlive this. BadInput when another process has it, when it is no log, or is damaged:
  // then the byte is named. SystemError when it cannot be read or written.
  Log(std::filesystem::path file, Table& table, Sessions& sessions);

  [[nodiscard]] const std::string& store_name() const { return store_name_; }

  // What the table has under the key from now on: its value, or nothing.
  void note_key(std::string_view key);
  // A reply that the sessions remember from now on.
  void note_reply(std::string_view session, const Message& reply);
  // Writes what was noted and waits for the disk. SystemError when that fails: what was noted may
  // be lost, nothing may be answered any more.
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
  sys::FileDescriptor file_;
  std::string store_name_;
  std::string pending_;
  std::uint64_t size_ = 0;        // of the file
  std::uint64_t least_size_ = 0;  // that it had when it was last written anew
};

}  // namespace lockstep::store
