#include "sys/failure_text.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

namespace lockstep::sys {
namespace {

TEST(FailureText, IsTheFirstLine) {
  EXPECT_EQ(failure_text(std::runtime_error("a file is missing")), "a file is missing");
  EXPECT_EQ(failure_text(std::runtime_error("bad shape\nframe #0: c10::Error\nframe #1: main")),
            "bad shape");
  // a quoted newline does not end the message
  EXPECT_EQ(failure_text(BadInput("found 'a\nb'")), "found 'a\nb'");
}

TEST(FailureText, OfTheFileSystemIsPathAndReason) {
  EXPECT_EQ(failure_text(std::filesystem::filesystem_error(
                "status", "/root/x", std::make_error_code(std::errc::permission_denied))),
            "/root/x: Permission denied");
}

TEST(FailureText, RefusedMemoryIsSaidInBytes) {
  std::string plain = failure_text(std::bad_alloc());
  EXPECT_TRUE(plain.starts_with("out of memory: an allocation failed; ")) << plain;
  EXPECT_TRUE(plain.ends_with(" of memory are free")) << plain;
  // The message of LibTorch 2.13.
  std::string tensor = failure_text(std::runtime_error(
      "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
      "you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)\nframe"));
  EXPECT_TRUE(tensor.starts_with("out of memory: an allocation of 4.0 TiB failed; ")) << tensor;
  EXPECT_EQ(tensor.find('\n'), std::string::npos);
}

TEST(FailureText, SizesAreRough) {
  EXPECT_EQ(rough_size(0), "0 B");
  EXPECT_EQ(rough_size(999), "999 B");
  EXPECT_EQ(rough_size(1024), "1.0 KiB");
  EXPECT_EQ(rough_size(102'000), "99.6 KiB");
  EXPECT_EQ(rough_size(102'380), "100 KiB");
  EXPECT_EQ(rough_size(1'048'100), "1.0 MiB");
  EXPECT_EQ(rough_size(25.3e9), "23.6 GiB");
  EXPECT_EQ(rough_size(1.3e22), "11546319 PiB");
  EXPECT_EQ(free_memory_text({.total = 25'300'000'000, .available = 640'000'000}),
            "610 MiB of 23.6 GiB of memory are free");
}

}  // namespace
}  // namespace lockstep::sys
