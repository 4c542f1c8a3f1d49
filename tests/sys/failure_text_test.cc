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
  EXPECT_TRUE(plain.starts_with("out of memory: an allocation was refused; ")) << plain;
  EXPECT_TRUE(plain.ends_with(" of memory are free")) << plain;
  // The message of LibTorch 2.13.
  std::string tensor = failure_text(std::runtime_error(
      "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
      "you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)\nframe"));
  EXPECT_TRUE(tensor.starts_with("out of memory: 4.4 TB were asked for at once; ")) << tensor;
  EXPECT_EQ(tensor.find('\n'), std::string::npos);
}

TEST(FailureText, SizesAreRough) {
  EXPECT_EQ(rough_size(0), "0 B");
  EXPECT_EQ(rough_size(999), "999 B");
  EXPECT_EQ(rough_size(1000), "1.0 kB");
  EXPECT_EQ(rough_size(99'949), "99.9 kB");
  EXPECT_EQ(rough_size(99'960), "100 kB");
  EXPECT_EQ(rough_size(999'600), "1.0 MB");
  EXPECT_EQ(rough_size(25.3e9), "25.3 GB");
  EXPECT_EQ(rough_size(1.3e22), "13000000 PB");
  EXPECT_EQ(free_memory_text({.total = 25'300'000'000, .available = 640'000'000}),
            "640 MB of 25.3 GB of memory are free");
}

}  // namespace
}  // namespace lockstep::sys
