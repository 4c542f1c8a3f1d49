#include <lockstep/store/prefix_store.h>

#include <lockstep/store/memory_store.h>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(PrefixStore, PartsDoNotSeeEachOther) {
  auto below = std::make_shared<MemoryStore>();
  PrefixStore a("a/", below), b("b/", below);
  a.set("key", "1");
  EXPECT_EQ(b.try_get("key"), std::nullopt);
  EXPECT_EQ(below->try_get("a/key"), "1");
  EXPECT_EQ(a.keys("k"), std::vector<std::string>{"key"});
  EXPECT_TRUE(b.keys("").empty());
  PrefixStore inner("inner/", std::make_shared<PrefixStore>("a/", below));
  inner.set("key", "2");
  EXPECT_EQ(below->try_get("a/inner/key"), "2");
}

TEST(PrefixStore, TheWholeKeyIsBounded) {
  auto below = std::make_shared<MemoryStore>();
  PrefixStore store(std::string(Store::max_key_bytes - 1, 'p'), below);
  EXPECT_NO_THROW(store.set("k", ""));
  EXPECT_THROW(store.set("kk", ""), BadInput);
  EXPECT_THROW(PrefixStore("p", nullptr), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
