#include <lockstep/store/secret.h>

#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using test::expect_words;
using test::message_of;

std::filesystem::path file_with(const test::TemporaryFolder& folder, const std::string& content,
                                mode_t mode = 0600) {
  auto file = folder / "secret";
  std::ofstream(file) << content;
  ::chmod(file.c_str(), mode);
  return file;
}

TEST(SecretFile, TheSameContentIsTheSameSecret) {
  const test::TemporaryFolder here, there;
  const std::string content = "correct horse battery";
  const std::string secret = read_secret_file(file_with(here, content));
  EXPECT_EQ(secret.size(), file_secret_bytes);
  EXPECT_EQ(secret, read_secret_file(file_with(there, content, 0400)));
  EXPECT_NE(secret, read_secret_file(file_with(there, content + "\n")));
  EXPECT_EQ(secret.find("horse"), std::string::npos);
}

TEST(SecretFile, WhatOthersCouldReadIsRefused) {
  const test::TemporaryFolder folder;
  for (mode_t mode : {0644, 0640, 0606, 0620})
    expect_words(message_of<BadInput>([&] {
                   (void)read_secret_file(file_with(folder, "correct horse battery", mode));
                 }),
                 {folder.path().string(), "mode 600", "found mode 6"});
}

TEST(SecretFile, ItMustBeAFileOfASensibleSize) {
  const test::TemporaryFolder folder;
  auto read = [&](const std::string& content) {
    return message_of<BadInput>([&] { (void)read_secret_file(file_with(folder, content)); });
  };
  expect_words(read(""), {"16 bytes to 64 KiB", "found 0"});
  expect_words(read("short"), {"found 5"});
  expect_words(read(std::string((64 << 10) + 1, 'x')), {"found 65537"});
  EXPECT_EQ(read_secret_file(file_with(folder, std::string(64 << 10, 'x'))).size(),
            file_secret_bytes);
  expect_words(message_of<SystemError>([&] { (void)read_secret_file(folder / "none"); }),
               {"none", "No such file"});
  expect_words(message_of<BadInput>([&] { (void)read_secret_file(folder.path()); }),
               {"regular file"});
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_words(message_of<BadInput>([&] { (void)read_secret_file(pipe); }), {"regular file"});
}

TEST(UserSecret, IsMadeOnceForAllWhoAskAtTheSameTime) {
  const test::TemporaryFolder folder;
  test::expect_ranks(5, [&](int rank) {
    ::setenv("XDG_STATE_HOME", (folder / "state").c_str(), 1);
    std::ofstream(folder / std::to_string(rank), std::ios::binary) << user_secret();
  });
  std::set<std::string> secrets;
  for (int rank = 0; rank < 5; ++rank) {
    std::ifstream file(folder / std::to_string(rank), std::ios::binary);
    secrets.emplace(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  EXPECT_EQ(secrets.size(), 1u);
  EXPECT_EQ(secrets.begin()->size(), file_secret_bytes);
  struct stat found = {};
  ASSERT_EQ(::stat((folder / "state/lockstep/secret").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_EQ(found.st_nlink, 1u) << "a temporary file was left";
}

TEST(UserSecret, NeedsAHome) {
  test::expect_ranks(1, [](int) {
    ::unsetenv("XDG_STATE_HOME");
    ::unsetenv("HOME");
    expect_words(message_of<BadInput>([] { (void)user_secret(); }), {"XDG_STATE_HOME", "HOME"});
    ::setenv("HOME", "/home/somebody", 1);
    EXPECT_EQ(user_secret_file(), "/home/somebody/.local/state/lockstep/secret");
  });
}

}  // namespace
}  // namespace lockstep
