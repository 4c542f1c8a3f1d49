// Tensors in arenas in forked children: a child allocates its own and does not touch its parent's.
// Each case runs in its own process, because LibTorch's allocator is installed permanently.
#include "comm/backends/shm/tensor_allocator.h"

#include "comm/arena_tensors.h"
#include "comm/child_result.h"
#include "support/messages.h"
#include "support/sanitizers.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep;
using shm::Arena;
using shm::ArenaTensors;
using test::alone;
using test::bytes_tensor;
using test::in_child;
using test::is_in;
using test::mebibyte;

namespace {

TEST(ArenaTensors, AForkedChildMakesItsOwn) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    ArenaTensors tensors(arena, 64 * mebibyte);
    auto before = arena->used();
    auto parents = at::ones({100'000});
    auto child = in_child([&] {
      auto mine = at::full({200'000}, 2.0);
      bool right = mine.sum().item<float>() == 400'000.0F && !is_in(*arena, mine);
      parents = at::Tensor();  // destroying the child's copy changes nothing
      return right ? 0 : 1;
    });
    EXPECT_TRUE(WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0) << child.status;
    EXPECT_EQ(child.text, "");
    EXPECT_EQ(parents.sum().item<float>(), 100'000.0F);
    parents = at::Tensor();
    EXPECT_EQ(arena->used(), before);
  });
}

TEST(ArenaTensors, AForkedChildThatTouchesItsParentsEndsAndSaysWhy) {
  alone([] {
    ::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would make the child exit normally
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    ArenaTensors tensors(arena, 64 * mebibyte);
    auto parents = at::ones({100'000});
    auto writes = [&] {
      parents.fill_(5);
      return 0;
    };
    auto reads = [&] { return static_cast<int>(parents.sum().item<float>()) % 2; };
    for (const std::function<int()>& touches : {std::function<int()>(writes), {reads}}) {
      auto child = in_child(touches);
      EXPECT_TRUE(WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGSEGV) << child.status;
      test::expect_words(child.text, {"a forked child touched a tensor of its parent",
                                      "LOCKSTEP_ARENA_TENSORS=off"});
    }
    EXPECT_EQ(parents.sum().item<float>(), 100'000.0F) << "else the child's values would be here";
    EXPECT_TRUE(is_in(*arena, at::ones({100'000})));
  });
}

// Otherwise mappings of the child could land in address ranges to which the child still has
// pointers.
TEST(ArenaTensors, NothingElseLiesThereInAForkedChild) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    ArenaTensors tensors(arena, 64 * mebibyte);
    auto child = in_child([&] {
      constexpr std::size_t bytes = 4096;
      void* wish = arena->data() + 8 * mebibyte;
      void* found = ::mmap(wish, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      return found != MAP_FAILED && !arena->contains(found, bytes) ? 0 : 1;
    });
    EXPECT_TRUE(WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0) << child.status;
  });
}

// The handler of a grandchild must not try each of the million pages that the child has closed.
TEST(ArenaTensors, AChildOfAChildIsForkedAtOnce) {
  alone([] {
    auto arena = std::make_shared<Arena>(std::size_t{8192} * mebibyte);
    ArenaTensors tensors(arena, 64 * mebibyte);
    auto parents = at::ones({100'000});
    auto child = in_child([&] {
      auto grandchild = in_child([&] {
        rusage used{};
        ::getrusage(RUSAGE_SELF, &used);
        if (used.ru_utime.tv_sec + used.ru_stime.tv_sec > 0 ||
            used.ru_utime.tv_usec + used.ru_stime.tv_usec > 500'000)
          return 1;
        void* found = ::mmap(arena->data(), 4096, PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        return found == MAP_FAILED ? 0 : 2;
      });
      return WIFEXITED(grandchild.status) ? WEXITSTATUS(grandchild.status) : 3;
    });
    EXPECT_TRUE(WIFEXITED(child.status)) << child.status;
    EXPECT_EQ(WEXITSTATUS(child.status), 0);
  });
}

TEST(ArenaTensors, AProgramThatHandlesFaultsInChildrenDoesSoItself) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    ArenaTensors tensors(arena, 64 * mebibyte);
    auto parents = at::ones({100'000});
    ::signal(SIGSEGV, [](int) { ::_exit(7); });
    auto child = in_child([&] {
      parents.fill_(5);
      return 0;
    });
    EXPECT_TRUE(WIFEXITED(child.status) && WEXITSTATUS(child.status) == 7) << child.status;
    EXPECT_EQ(child.text, "");
  });
}

// A thread of the parent may be allocating during the fork: the child must not wait for it.
TEST(ArenaTensors, AChildOfABusyProcessMakesAndEndsThem) {
  if (test::under_address_sanitizer || test::under_thread_sanitizer)
    GTEST_SKIP() << "a sanitizer's malloc stays locked in a child that was forked meanwhile";
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    std::optional<ArenaTensors> tensors(std::in_place, arena, 64 * mebibyte);
    // LibTorch looks an operation up on its first use; the child must not inherit a half-finished
    // lookup.
    (void)bytes_tensor(ArenaTensors::least_bytes);
    std::atomic<bool> done{false};
    std::thread busy([&] {
      while (!done) (void)bytes_tensor(ArenaTensors::least_bytes);
    });
    for (int round = 0; round < 100; ++round) {
      auto child = in_child([&] {
        ::alarm(5);
        const ArenaTensors own(arena, mebibyte);
        tensors.reset();
        return is_in(*arena, bytes_tensor(mebibyte)) ? 1 : 0;
      });
      ASSERT_TRUE(WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0) << child.status;
    }
    done = true;
    busy.join();
  });
}

std::byte* place_of_handler = nullptr;

// If another library's fork handler has mapped a page in the arena's range, the page is not
// unmapped.
TEST(ArenaTensors, PagesOfOtherForkHandlersStay) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    place_of_handler = arena->data() + 8 * mebibyte;
    pthread_atfork(nullptr, nullptr, [] {  // before the allocator's
      void* page = ::mmap(place_of_handler, 4096, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (page == place_of_handler) *place_of_handler = std::byte{42};
    });
    ArenaTensors tensors(arena, 64 * mebibyte);
    auto child = in_child([&] {
      if (*place_of_handler != std::byte{42}) return 1;
      for (std::size_t offset : {std::size_t{4096}, 32 * mebibyte}) {  // the rest is inaccessible
        void* found = ::mmap(place_of_handler + offset, 4096, PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (found != MAP_FAILED) return 2;
      }
      return 0;
    });
    EXPECT_TRUE(WIFEXITED(child.status)) << child.status;
    EXPECT_EQ(WEXITSTATUS(child.status), 0);
  });
}

}  // namespace
