#include "sys/plain_file.h"

#include "support/temporary_folder.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;

template <class Error = BadInput>
std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::string refusal_of(const fs::path& path) {
  return refused([&] { PlainFile file(path); });
}

TEST(PlainFile, IsReadInPiecesOfAnySize) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "a") << "abcdefg";
  PlainFile file(folder / "a");
  EXPECT_EQ(file.size(), 7u);
  std::array<std::byte, 4> piece{};
  EXPECT_EQ(file.read(piece), 4u);
  EXPECT_EQ(static_cast<char>(piece[3]), 'd');
  EXPECT_EQ(file.read(piece), 3u);
  EXPECT_EQ(file.read(piece), 0u);
}

TEST(PlainFile, WhatIsNoFileIsRefusedAtOnce) {
  test::TemporaryFolder folder;
  const fs::path pipe = folder / "pipe", link = folder / "link", server = folder / "socket";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  server.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string place = "reading " + folder.path().string();
  EXPECT_EQ(refusal_of(pipe), place + "/pipe: expected a file, found a named pipe");
  EXPECT_EQ(refusal_of(link), place + "/link: expected a file, found a named pipe");
  EXPECT_EQ(refusal_of(server), place + "/socket: expected a file, found a socket");
  EXPECT_EQ(refusal_of(folder.path()), place + ": expected a file, found a folder");
  EXPECT_EQ(refusal_of("/dev/zero"), "reading /dev/zero: expected a file, found a device");
}

TEST(PlainFile, WhatIsMissingIsASystemError) {
  test::TemporaryFolder folder;
  EXPECT_EQ(refused<SystemError>([&] { PlainFile file(folder / "a"); }),
            "opening " + (folder / "a").string() + ": No such file or directory");
}

TEST(PlainFile, ALinkToAFileIsAFile) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "a") << "abc";
  fs::create_symlink(folder / "a", folder / "link");
  EXPECT_EQ(read_plain_file(folder / "link", 3), "abc");
}

TEST(PlainFile, TheWholeContentIsBounded) {
  test::TemporaryFolder folder;
  const fs::path file = folder / "a";
  for (std::size_t size : {0, 1, 100'000}) {
    const std::string content(size, 'x');
    std::ofstream(file) << content;
    EXPECT_EQ(read_plain_file(file, 100'000), content);
  }
  EXPECT_EQ(refused([&] { (void)read_plain_file(file, 99'999); }),
            "reading " + file.string() + ": expected at most 97.7 KiB, found 97.7 KiB");
  fs::resize_file(file, std::uintmax_t{1} << 40);
  EXPECT_EQ(refused([&] { (void)read_plain_file(file, 1 << 20); }),
            "reading " + file.string() + ": expected at most 1 MiB, found 1 TiB");
  EXPECT_NE(read_plain_file("/proc/self/status", 1 << 20).find("Pid:"), std::string::npos);
}

TEST(PlainFile, MoreThanTheMachinesMemoryIsRefused) {
  EXPECT_NO_THROW(check_fits_memory("a", 1000));
  EXPECT_NO_THROW(check_fits_memory("a", 65 << 20));
  const std::string line = refused([] { check_fits_memory("a", std::uint64_t{1} << 50); });
  EXPECT_EQ(line.find("reading a: expected at most "), 0u) << line;
  EXPECT_NE(line.find("found 1024 TiB"), std::string::npos) << line;
}

std::string numbers(const std::vector<std::uint32_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
}

TEST(FileKind, WellKnownFormatsAreRecognized) {
  std::string llm_c = numbers({20240520, 1, 8});
  llm_c.resize(1024 + 16);
  const std::string text = "It was the best of times, it was the worst of times";
  const std::string frame("\x80\x04\x95\x10\0\0\0\0\0\0\0", 11);
  const std::vector<std::pair<std::string, std::string>> cases{
      {std::string("\x93NUMPY\1\0v\0{'descr': '<u2'", 24), "an array of NumPy (.npy)"},
      {"PK\3\4abcd", "a zip archive, such as .npz or a file of torch.save()"},
      {"PAR1abcd", "a Parquet file"},
      {std::string("ARROW1\0\0abcd", 12), "an Arrow file"},
      {numbers({0xffffffff, 16, 16, 0, 0, 0, 0}), "an Arrow stream"},
      {std::string("\x1f\x8b\x08\0abcd\0\3abcdef", 16), "a file compressed by gzip"},
      {std::string("\x02\0\0\0\0\0\0\0{}", 10), "a safetensors file"},
      {std::string("\x02\0\0\0\0\0\0\0{\"", 10), "a safetensors file"},
      {llm_c, "a token file of llm.c, which begins with a header"},
      {frame + std::string(16, '\1'), "a pickle of Python"},
      {text, "text"},
      {std::string(511, 'a') + "ü", "text"},
      {R"({"text": "It was the best of times, it was"})", "JSON"},
  };
  for (const auto& [content, kind] : cases)
    EXPECT_EQ(file_kind(content, content.size()), kind) << content;
  EXPECT_EQ(file_kind("", 0), "");
  EXPECT_EQ(file_kind("abc", 3), "");
}

TEST(FileKind, FilesOfTokensAreNot) {
  std::mt19937 random(3);
  for (const int vocabulary : {2, 256, 50257, 65536})
    for (int i = 0; i < 20'000; ++i) {
      std::string tokens;
      for (int token = 0; token < 64; ++token) {
        const auto value = static_cast<std::uint16_t>(random() % static_cast<unsigned>(vocabulary));
        tokens.append(reinterpret_cast<const char*>(&value), 2);
      }
      ASSERT_EQ(file_kind(tokens, tokens.size()), "") << vocabulary;
    }
}

}  // namespace

}  // namespace lockstep::sys
