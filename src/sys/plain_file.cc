#include "sys/plain_file.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "sys/topology.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace lockstep::sys {
namespace {

constexpr std::size_t largest_read = std::size_t{1} << 30;  // the kernel's limit is just below 2^31

void check_is_plain(const struct stat& status, const std::filesystem::path& path) {
  check_input(S_ISREG(status.st_mode), "reading {}: expected a file, found {}", path.string(),
              kind_of(status.st_mode));
}

// Returns true for filesystems that several hosts share, each with its own device number. The inode
// numbers of these filesystems come from the server.
bool is_of_several_hosts(int file) {
  constexpr std::array<std::uint32_t, 9> known{0x6969,       // NFS
                                               0x0bd00bd0,   // Lustre
                                               0x00c36400,   // Ceph
                                               0x47504653,   // GPFS
                                               0x19830326,   // BeeGFS
                                               0xff534d42,   // CIFS
                                               0xfe534d42,   // SMB2
                                               0x01021997,   // 9P
                                               0x7461636f};  // OCFS2
  struct statfs about {};
  return ::fstatfs(file, &about) == 0 &&
         std::ranges::count(known, static_cast<std::uint32_t>(about.f_type)) > 0;
}

// Calls read(to, place, most) until `bytes` is full or the file ends. Returns the bytes read.
template <class Read>
std::size_t read_all(std::span<std::byte> bytes, const std::filesystem::path& path,
                     const Read& read) {
  std::size_t total = 0;
  while (total < bytes.size()) {
    const std::size_t most = std::min(bytes.size() - total, largest_read);
    const ssize_t count = read(bytes.data() + total, total, most);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("reading " + path.string(), errno);
    if (count == 0) break;
    total += static_cast<std::size_t>(count);
  }
  return total;
}

}  // namespace

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

// The first check avoids opening a device, which can have side effects; the second one checks the
// file that was opened. O_NONBLOCK prevents blocking on a pipe that replaced the file in between.
PlainFile::PlainFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) throw SystemError("opening " + path_.string(), errno);
  check_is_plain(status, path_);
  file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file_) throw SystemError("opening " + path_.string(), errno);
  if (::fstat(file_.get(), &status) != 0) throw SystemError("looking at " + path_.string(), errno);
  check_is_plain(status, path_);
  size_ = static_cast<std::uint64_t>(std::max<off_t>(0, status.st_size));
}

std::size_t PlainFile::read(std::span<std::byte> bytes) {
  return read_all(bytes, path_, [&](std::byte* to, std::size_t /*place*/, std::size_t most) {
    return ::read(file_.get(), to, most);
  });
}

std::size_t PlainFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  return read_all(bytes, path_, [&](std::byte* to, std::size_t place, std::size_t most) {
    return ::pread(file_.get(), to, most, static_cast<off_t>(offset + place));
  });
}

std::string read_plain_file(const std::filesystem::path& path, std::uint64_t most_bytes) {
  PlainFile file(path);
  std::string content;
  for (std::uint64_t piece = file.size() + 1;; piece = 1 << 20) {
    check_input(
        content.size() + piece - 1 <= most_bytes, "reading {}: expected at most {}, found {}",
        path.string(), format_bytes(static_cast<std::int64_t>(most_bytes)),
        piece == file.size() + 1 ? format_bytes(static_cast<std::int64_t>(file.size())) : "more");
    const std::size_t before = content.size();
    content.resize(before + piece);
    const std::size_t count =
        file.read(std::as_writable_bytes(std::span(content.data() + before, piece)));
    content.resize(before + count);
    if (count < piece) break;
  }
  return content;
}

bool may_be_of_several_hosts(int file) {
  constexpr std::array<std::uint32_t, 9> of_one_host{0xef53,       // ext4
                                                     0x58465342,   // XFS
                                                     0x9123683e,   // Btrfs
                                                     0x2fc12fc1,   // ZFS
                                                     0xf2f52010,   // F2FS
                                                     0xca451a4e,   // bcachefs
                                                     0x01021994,   // tmpfs
                                                     0x858458f6,   // ramfs
                                                     0x794c7630};  // overlay
  struct statfs about {};
  return ::fstatfs(file, &about) != 0 ||
         std::ranges::count(of_one_host, static_cast<std::uint32_t>(about.f_type)) == 0;
}

// Files on shared filesystems are identified by inode, size and times; a copy differs in at least
// one of these.
std::string PlainFile::identity() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw SystemError("looking at " + path_.string(), errno);
  if (!is_of_several_hosts(file_.get()))
    return formatted("{} {} {}", host_identity(), status.st_dev, status.st_ino);
  return formatted("{} {} {}.{} {}.{}", status.st_ino, status.st_size, status.st_mtim.tv_sec,
                   status.st_mtim.tv_nsec, status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
}

void check_fits_memory(const std::filesystem::path& path, std::uint64_t bytes, double share) {
  constexpr std::uint64_t always_fits = 64 << 20;
  if (bytes <= always_fits) return;
  const auto total = static_cast<double>(memory_size().total);
  check_input(static_cast<double>(bytes) <= total * share,
              "reading {}: expected at most {}, so that it fits into memory, found {}",
              path.string(), format_bytes(static_cast<std::int64_t>(total * share)),
              format_bytes(static_cast<std::int64_t>(
                  std::min<std::uint64_t>(bytes, std::uint64_t{1} << 62))));
}

namespace {

using std::string_view_literals::operator""sv;

struct Magic {
  std::string_view bytes, kind;
  std::size_t place = 0;
};

constexpr std::array<Magic, 20> magics{{
    {"\x93NUMPY"sv, "an array of NumPy (.npy)"},
    {"PK\3\4"sv, "a zip archive, such as .npz or a file of torch.save()"},
    {"PK\5\6"sv, "a zip archive without files"},
    {"PAR1"sv, "a Parquet file"},
    {"ARROW1\0\0"sv, "an Arrow file"},
    {"\x28\xb5\x2f\xfd"sv, "a file compressed by zstd"},
    {"\xfd"
     "7zXZ\0"sv,
     "a file compressed by xz"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    {"\x80\2\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv,
     "a file of torch.save() in the format before PyTorch 1.6"},
    {"1AY&SY"sv, "a file compressed by bzip2", 4},
    {"\x04\x22\x4d\x18"sv, "a file compressed by lz4"},
    {"ustar"sv, "a tar archive", 257},
    {"MMIDIDX\0\0"sv, "an index of Megatron (.idx), whose tokens are in the .bin file beside it"},
    {"FEA1"sv, "a Feather file"},
    {"Obj\1"sv, "an Avro file"},
    {"GGUF"sv, "a GGUF file"},
    {"SQLite format 3\0"sv, "a database of SQLite"},
    {"\xde\xc0\xef\xbe"sv, "a database of LMDB", 16},
    {"\x89PNG\r\n\x1a\n"sv, "a PNG image"},
    {"\x7f"
     "ELF"sv,
     "a program or a library"},
}};

template <class Number>
Number number_at(std::string_view begin, std::size_t place) {
  Number number{};
  if (begin.size() >= place + sizeof number)
    std::memcpy(&number, begin.data() + place, sizeof number);
  return number;
}

bool is_gzip(std::string_view begin) {
  return begin.size() >= 10 && begin.starts_with("\x1f\x8b\x08"sv) &&
         static_cast<unsigned char>(begin[3]) < 0x20 &&
         (begin[8] == 0 || begin[8] == 2 || begin[8] == 4) &&
         (static_cast<unsigned char>(begin[9]) < 14 || begin[9] == '\xff');
}

// Recognises a message of Arrow's stream format, as written by the Arrow libraries, by its length
// and the offset of its root table.
bool is_arrow_stream(std::string_view begin, std::uint64_t size) {
  const auto length = number_at<std::uint32_t>(begin, 4);
  return begin.starts_with("\xff\xff\xff\xff"sv) && length > 0 && length % 8 == 0 &&
         length < size && number_at<std::uint32_t>(begin, 8) == 16;
}

bool is_safetensors(std::string_view begin, std::uint64_t size) {
  const auto length = number_at<std::uint64_t>(begin, 0);
  return begin.size() >= 10 && length >= 2 && length <= size - 8 &&
         (begin.substr(8).starts_with("{\"") || begin.substr(8).starts_with("{}"));
}

// Recognises the header of 256 numbers that llm.c writes before the tokens: a magic number, a
// version and the number of tokens.
bool is_llm_c(std::string_view begin, std::uint64_t size) {
  const auto magic = number_at<std::uint32_t>(begin, 0);
  const auto count = std::uint64_t{number_at<std::uint32_t>(begin, 8)};
  return (magic == 20240520 || magic == 20240801) &&
         (size == 1024 + 2 * count || size == 1024 + 4 * count);
}

// Recognises a pickle of protocol 4 or 5 whose first frame is not longer than the file.
bool is_pickle(std::string_view begin, std::uint64_t size) {
  if (begin.size() < 11 ||
      !(begin.starts_with("\x80\4\x95"sv) || begin.starts_with("\x80\5\x95"sv)))
    return false;
  return number_at<std::uint64_t>(begin, 3) <= size - 11;
}

// Recognises UTF-8 without control characters; the last character may be truncated.
bool is_text(std::string_view begin) {
  constexpr std::size_t fewest = 32, longest_character = 4;
  if (begin.size() < fewest) return false;
  while (!begin.empty()) {
    const std::optional<Character> one = first_character(begin);
    if (!one) return begin.size() < longest_character;
    const bool is_control = one->code_point < 0x20 || one->code_point == 0x7f;
    if (is_control && std::string_view("\t\n\r\f").find(begin[0]) == std::string_view::npos)
      return false;
    begin.remove_prefix(one->bytes);
  }
  return true;
}

}  // namespace

std::string_view file_kind(std::string_view begin, std::uint64_t size) {
  begin = begin.substr(0, file_kind_bytes);
  if (is_safetensors(begin, size)) return safetensors_kind;
  for (const Magic& magic : magics)
    if (begin.size() > magic.place && begin.substr(magic.place).starts_with(magic.bytes))
      return magic.kind;
  if (is_gzip(begin)) return "a file compressed by gzip";
  if (is_arrow_stream(begin, size)) return "an Arrow stream";
  if (is_llm_c(begin, size)) return "a token file of llm.c, which begins with a header";
  if (is_pickle(begin, size)) return "a pickle of Python";
  if (is_text(begin)) return begin[0] == '{' || begin[0] == '[' ? "JSON" : "text";
  return {};
}

}  // namespace lockstep::sys
