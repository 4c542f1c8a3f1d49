#include "store/log.h"

#include "base/check.h"
#include "base/format.h"
#include "sys/files.h"
#include "sys/random_bytes.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sodium.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::store {

namespace {

constexpr std::size_t file_check_bytes = 8, hash_bytes = 8, check_bytes = 4;
constexpr std::size_t file_header_bytes = log_magic.size() + store_name_bytes + file_check_bytes;
constexpr std::size_t record_header_bytes = 4 + hash_bytes + check_bytes;
// The log is compacted when this many bytes of it are obsolete.
constexpr std::uint64_t most_waste = 16 << 20;

std::string hash_of(std::string_view bytes, std::size_t size) {
  unsigned char hash[crypto_generichash_BYTES_MIN];
  crypto_generichash(hash, sizeof(hash), reinterpret_cast<const unsigned char*>(bytes.data()),
                     bytes.size(), nullptr, 0);
  return {reinterpret_cast<const char*>(hash), size};
}

std::uint32_t length_at(std::string_view bytes) {
  std::uint32_t length = 0;
  for (int i = 3; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
  return length;
}

std::string framed(const Message& record) {
  const std::string payload = encode(record);
  std::string bytes = encode_length(payload.size()) + hash_of(payload, hash_bytes);
  bytes += hash_of(bytes, check_bytes);
  return bytes + payload;
}

// Appends the bytes, whatever the offset: both files are opened with O_APPEND.
void write_to_disk(int file, std::string_view bytes, const std::string& name) {
  sys::write_all_at(file, 0, std::as_bytes(std::span(bytes)), "the store's log " + name);
  if (::fdatasync(file) != 0) throw SystemError("writing the store's log " + name, errno);
}

}  // namespace

std::string random_store_name() { return sys::random_bytes(store_name_bytes); }

Log::Log(std::filesystem::path file, Table& table, Sessions& sessions)
    : path_(std::move(file)), table_(table), sessions_(sessions) {
  while (!open_and_lock()) {
  }
  const std::string content = sys::read_file(path_);
  if (content.empty()) {
    store_name_ = random_store_name();
    write_to_disk(file_.get(), header(), path_.string());
    sys::flush_folder(path_.has_parent_path() ? path_.parent_path() : ".");
    size_ = least_size_ = file_header_bytes;
  } else {
    read(content);
  }
}

// Returns false if the previous holder of the lock has replaced the file meanwhile.
bool Log::open_and_lock() {
  file_ = sys::PrivateDescriptor(
      ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND | O_NONBLOCK, 0600));
  if (!file_) throw SystemError("opening the store's log " + path_.string(), errno);
  struct stat opened = {}, named = {};
  check_input(::fstat(file_.get(), &opened) == 0 && S_ISREG(opened.st_mode),
              "the store's log {}: expected a regular file", path_.string());
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    check_input(errno != EWOULDBLOCK, "the store's log {} is in use by another store",
                path_.string());
    throw SystemError("locking the store's log " + path_.string(), errno);
  }
  return ::stat(path_.c_str(), &named) == 0 && named.st_ino == opened.st_ino;
}

std::string Log::header() const {
  const std::string bytes = std::string(log_magic) + store_name_;
  return bytes + hash_of(bytes, file_check_bytes);
}

void Log::read(const std::string& content) {
  const std::string_view bytes = content;
  check_input(bytes.substr(0, log_magic.size()) == log_magic.substr(0, bytes.size()),
              "{} is not the log of a store", path_.string());
  store_name_ = bytes.size() < file_header_bytes
                    ? random_store_name()  // killed before it served a client
                    : std::string(bytes.substr(log_magic.size(), store_name_bytes));
  if (bytes.size() < file_header_bytes) return write_anew();
  check_input(bytes.starts_with(header()), "the store's log {} is damaged at byte {}",
              path_.string(), log_magic.size());
  std::uint64_t at = file_header_bytes;
  while (at < bytes.size()) {
    const std::string_view left = bytes.substr(at);
    const std::string_view head = left.substr(0, record_header_bytes);
    const bool zeros = left.find_first_not_of('\0') == std::string_view::npos;
    if (head.size() < record_header_bytes || zeros) break;  // an incomplete last record
    const std::size_t before_check = record_header_bytes - check_bytes;
    check_input(hash_of(head.substr(0, before_check), check_bytes) == head.substr(before_check),
                "the store's log {} is damaged at byte {}", path_.string(), at);
    const std::uint64_t length = length_at(head);
    if (left.size() - record_header_bytes < length) break;
    const std::string_view payload = left.substr(record_header_bytes, length);
    const bool whole = hash_of(payload, hash_bytes) == head.substr(4, hash_bytes);
    const bool last = left.size() == record_header_bytes + length;
    if (!whole && last) break;
    check_input(whole, "the store's log {} is damaged at byte {}", path_.string(), at);
    try {
      apply(decode(payload));
    } catch (const BadInput& error) {  // intact, but not a valid record
      throw BadInput(formatted("the store's log {} is damaged at byte {} ({})", path_.string(), at,
                               error.what()));
    }
    at += record_header_bytes + length;
  }
  if (at < bytes.size() && ::ftruncate(file_.get(), static_cast<off_t>(at)) != 0)
    throw SystemError("cutting the store's log " + path_.string(), errno);
  size_ = at;
  write_anew();
}

void Log::apply(const Message& record) {
  const auto& parts = record.parts;
  const bool known =
      (record.code == Code::set && parts.size() == 2) ||
      (record.code == Code::erase && parts.size() == 1) ||
      ((record.code == Code::done || record.code == Code::refused) && !parts.empty());
  check_input(known, "unknown record");
  if (record.code == Code::set) {
    table_.set(parts[0], parts[1]);
  } else if (record.code == Code::erase) {
    table_.erase(parts[0]);
  } else {
    Message reply{record.id, record.code, record.number, {parts.begin() + 1, parts.end()}};
    sessions_.remember(parts[0], std::move(reply));
  }
}

void Log::note_key(std::string_view key) {
  const std::string* value = table_.find(key);
  if (value != nullptr)
    append({0, Code::set, 0, {std::string(key), *value}});
  else
    append({0, Code::erase, 0, {std::string(key)}});
}

void Log::note_reply(std::string_view session, const Message& reply) {
  const Message* kept = sessions_.find(session, reply.id);
  if (kept == nullptr) return;
  Message record = *kept;
  record.parts.insert(record.parts.begin(), std::string(session));
  append(record);
}

void Log::append(const Message& record) { pending_ += framed(record); }

void Log::commit() {
  if (pending_.empty()) return;
  write_to_disk(file_.get(), pending_, path_.string());
  size_ += pending_.size();
  pending_.clear();
  if (size_ > 2 * least_size_ + most_waste) write_anew();
}

// Locks the new file before it renames it to the log's name.
void Log::write_anew() {
  std::string content = header();
  for (const std::string& key : table_.keys(""))
    content += framed({0, Code::set, 0, {key, *table_.find(key)}});
  sessions_.for_each([&](const std::string& session, const Message& reply) {
    Message record = reply;
    record.parts.insert(record.parts.begin(), session);
    content += framed(record);
  });
  if (size_ == content.size()) {
    least_size_ = size_;
    return;
  }
  const std::filesystem::path partial = path_.string() + ".partial";
  sys::PrivateDescriptor anew(
      ::open(partial.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600));
  if (!anew) throw SystemError("making " + partial.string(), errno);
  write_to_disk(anew.get(), content, partial.string());
  if (::flock(anew.get(), LOCK_EX | LOCK_NB) != 0)
    throw SystemError("locking " + partial.string(), errno);
  sys::rename_durably(partial, path_);
  file_ = std::move(anew);
  size_ = least_size_ = content.size();
}

}  // namespace lockstep::store
