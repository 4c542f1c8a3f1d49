#include "sys/private_pages.h"

#include "sys/heap.h"
#include "sys/process_info.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace lockstep::sys {
namespace {

constexpr std::size_t large = std::size_t{64} << 20;

TEST(PrivatePages, GoBackToTheSystemWithTheirLastOwner) {
  keep_freed_memory();
  auto before = proportional_bytes();
  auto pages = private_pages(large);
  auto second_owner = pages;
  EXPECT_EQ(static_cast<const char*>(pages.get())[large - 1], 0);
  std::memset(pages.get(), 1, large);
  pages.reset();
  EXPECT_GT(proportional_bytes(), before + static_cast<std::int64_t>(large / 2));
  second_owner.reset();
  EXPECT_LT(proportional_bytes(), before + static_cast<std::int64_t>(large / 2));
}

TEST(PrivatePages, TooManyAreAnErrorThatSaysHowMany) {
  try {
    (void)private_pages(std::size_t{1} << 60);
    FAIL() << "expected an error";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(std::size_t{1} << 60)),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep::sys
