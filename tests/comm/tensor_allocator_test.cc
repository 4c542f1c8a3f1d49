// Tensors in arenas: their placement, when memory is returned, and access by other threads. Each
// case runs in its own process, because LibTorch's allocator is installed permanently.
#include "comm/backends/shm/tensor_allocator.h"

#include "comm/arena_tensors.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/torch/ranks.h"
#include "sys/heap.h"
#include "sys/topology.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep;
using shm::Arena;
using shm::ArenaTensors;
using test::alone;
using test::bytes_tensor;
using test::is_in;
using test::mebibyte;

namespace {

TEST(ArenaTensors, LieInTheArenaFromASizeOn) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    auto before = at::ones({100'000});
    std::optional<ArenaTensors> tensors(std::in_place, arena, 64 * mebibyte);
    auto large = bytes_tensor(ArenaTensors::least_bytes);
    EXPECT_TRUE(is_in(*arena, large));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data_ptr()) % 4096, 0U);
    EXPECT_FALSE(is_in(*arena, bytes_tensor(ArenaTensors::least_bytes - 1)));
    EXPECT_FALSE(is_in(*arena, bytes_tensor(0)));
    EXPECT_FALSE(is_in(*arena, before));
    EXPECT_TRUE(is_in(*arena, before + before)) << "results of operations, too";
    EXPECT_TRUE(is_in(*arena, at::zeros({300, 300}).t().contiguous()));
  });
}

TEST(ArenaTensors, GoBackToWhereTheyCameFrom) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    auto used = arena->used();
    auto before = at::ones({100'000});
    std::optional<ArenaTensors> tensors(std::in_place, arena, 64 * mebibyte);
    auto inside = at::full({100'000}, 2.0);
    before.resize_({200'000});  // by the allocator that allocated it
    EXPECT_EQ(before[99'999].item<float>(), 1.0F);
    inside.resize_({300'000});
    EXPECT_TRUE(is_in(*arena, inside));
    EXPECT_EQ(inside[99'999].item<float>(), 2.0F);
    before = at::Tensor();
    inside = at::Tensor();
    EXPECT_EQ(arena->used(), used);

    inside = at::full({100'000}, 3.0);
    tensors.reset();
    EXPECT_FALSE(is_in(*arena, at::ones({100'000})));
    std::weak_ptr<Arena> mapped = arena;
    arena.reset();
    EXPECT_FALSE(mapped.expired()) << "a tensor lies in it";
    EXPECT_EQ(inside.sum().item<float>(), 300'000.0F);
    std::thread([&] { inside = at::Tensor(); }).join();
    EXPECT_TRUE(mapped.expired());
  });
}

TEST(ArenaTensors, AnotherArenaServesAfterTheFirst) {
  alone([] {
    auto first = std::make_shared<Arena>(64 * mebibyte);
    auto second = std::make_shared<Arena>(64 * mebibyte);
    std::optional<ArenaTensors> of_first(std::in_place, first, 64 * mebibyte);
    auto kept = at::ones({100'000});
    {
      ArenaTensors besides(second, 64 * mebibyte);
      EXPECT_TRUE(is_in(*first, at::ones({100'000}))) << "the first serves";
    }
    EXPECT_TRUE(is_in(*first, at::ones({100'000})));
    of_first.reset();
    ArenaTensors of_second(second, 64 * mebibyte);
    auto later = at::ones({100'000});
    EXPECT_TRUE(is_in(*second, later));
    EXPECT_TRUE(is_in(*first, kept));
    kept = at::Tensor();
    EXPECT_TRUE(is_in(*second, later + later));
  });
}

TEST(ArenaTensors, WhatDoesNotFitIsMadeElsewhere) {
  alone([] {
    auto arena = std::make_shared<Arena>(8 * mebibyte);
    ArenaTensors tensors(arena, 6 * mebibyte);
    auto most = bytes_tensor(6 * mebibyte);
    EXPECT_TRUE(is_in(*arena, most));
    EXPECT_FALSE(is_in(*arena, bytes_tensor(mebibyte))) << "the rest is for other uses";
    most = at::Tensor();
    EXPECT_TRUE(is_in(*arena, bytes_tensor(mebibyte)));
    auto huge = bytes_tensor(100 * mebibyte);
    EXPECT_FALSE(is_in(*arena, huge));
    huge.fill_(1);
    auto* rest = arena->allocate(7 * mebibyte);
    EXPECT_FALSE(is_in(*arena, bytes_tensor(mebibyte)));
    arena->free(rest);
  });
}

TEST(ArenaTensors, RawMemoryHasOneDeleter) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    auto used = arena->used();
    ArenaTensors tensors(arena, 64 * mebibyte);
    auto* allocator = c10::GetCPUAllocator();
    auto* small = allocator->raw_allocate(100);
    auto* large = allocator->raw_allocate(mebibyte);
    EXPECT_FALSE(arena->contains(small, 100));
    EXPECT_TRUE(arena->contains(large, mebibyte));
    allocator->raw_deallocate(small);
    allocator->raw_deallocate(large);
    EXPECT_EQ(arena->used(), used);
  });
}

TEST(ArenaTensors, OfManyThreadsKeepTheirValues) {
  alone([] {
    auto arena = std::make_shared<Arena>(256 * mebibyte);
    auto used = arena->used();
    {
      ArenaTensors tensors(arena, 256 * mebibyte);
      auto work = [](int seed) {
        std::mt19937 random(seed);
        std::vector<std::pair<at::Tensor, int>> live;
        for (int round = 0; round < 500; ++round) {
          auto sizes = std::uniform_int_distribution<std::int64_t>(1, 100'000);
          live.emplace_back(at::full({sizes(random)}, round, at::kInt), round);
          if (live.size() > 20) {
            auto place = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
            EXPECT_TRUE((place->first == place->second).all().item<bool>());
            live.erase(place);
          }
        }
      };
      std::vector<std::thread> threads;
      for (int seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
      for (auto& thread : threads) thread.join();
    }
    EXPECT_EQ(arena->used(), used);
  });
}

// A long run of mixed sizes does not fragment the arena: freed memory can be reused.
TEST(ArenaTensors, AMillionMixedOnesDoNotFragmentTheArena) {
  alone([] {
    constexpr std::size_t live_bytes = 128 * mebibyte;
    auto arena = std::make_shared<Arena>(2 * live_bytes);
    ArenaTensors tensors(arena, 2 * live_bytes);
    std::mt19937 random(1);
    std::vector<at::Tensor> live;
    std::size_t bytes = 0;
    int elsewhere = 0;
    for (int round = 0; round < 1'000'000; ++round) {
      auto exponent = std::uniform_real_distribution<double>(16, 22)(random);
      auto size = static_cast<std::size_t>(std::exp2(exponent));
      while (bytes + size > live_bytes) {
        auto place = random() % live.size();
        bytes -= live[place].nbytes();
        std::swap(live[place], live.back());
        live.pop_back();
      }
      live.push_back(bytes_tensor(size));
      bytes += size;
      if (!is_in(*arena, live.back())) ++elsewhere;
    }
    EXPECT_EQ(elsewhere, 0) << "of 1,000,000, at half of the arena in use";
  });
}

// Memory of the underlying allocator is freed there, although arenas are mapped and unmapped at the
// same time.
TEST(ArenaTensors, OthersAreFreedWhileArenasChange) {
  alone([] {
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int seed = 0; seed < 3; ++seed)
      threads.emplace_back([&, seed] {
        std::mt19937 random(seed);
        std::vector<at::Tensor> live(20);
        while (!done) {
          auto size = std::uniform_int_distribution<std::int64_t>(1, 1'000'000)(random);
          live[random() % live.size()] = at::full({size}, 1, at::kByte);
        }
      });
    for (int round = 0; round < 300; ++round) {
      const std::size_t bytes = (round % 2 == 0 ? 2 : 64) * mebibyte;
      auto arena = std::make_shared<Arena>(bytes);
      const ArenaTensors tensors(arena, bytes);
      (void)bytes_tensor(mebibyte);
    }
    done = true;
    for (auto& thread : threads) thread.join();
  });
}

// If the system overcommits memory, touching a tensor must not be the operation that fails.
TEST(ArenaTensors, TheirPagesCanBeThereFromTheBeginning) {
  alone([] {
    auto arena = std::make_shared<Arena>(64 * mebibyte);
    ArenaTensors tensors(arena, 64 * mebibyte, ArenaTensors::Pages::at_once);
    auto before = arena->resident_bytes();
    auto tensor = bytes_tensor(16 * mebibyte);
    EXPECT_TRUE(is_in(*arena, tensor));
    EXPECT_GE(arena->resident_bytes(), before + 16 * mebibyte);
  });
}

// Returns the resident set size of this process.
std::size_t resident_in_process() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(ArenaTensors, PagesOfWhatHasGoneAreGivenBack) {
  alone([] {
    auto arena = std::make_shared<Arena>(2048 * mebibyte);
    ArenaTensors tensors(arena, 2048 * mebibyte);
    auto large = bytes_tensor(1024 * mebibyte).fill_(1);
    auto with = arena->resident_bytes();
    EXPECT_GE(with, 1024 * mebibyte);
    EXPECT_GE(resident_in_process(), 1024 * mebibyte);
    large = at::Tensor();
    EXPECT_LE(arena->resident_bytes(), 300 * mebibyte);
    EXPECT_LE(resident_in_process(), 1000 * mebibyte);
    auto kept = bytes_tensor(200 * mebibyte).fill_(2);
    bytes_tensor(50 * mebibyte).fill_(3);
    EXPECT_GE(arena->resident_bytes(), 250 * mebibyte);
    sys::return_freed_memory();
    EXPECT_LE(arena->resident_bytes(), 204 * mebibyte);
    EXPECT_TRUE((kept == 2).all().item<bool>());
  });
}

// Settings that limit malloc also limit these pages, so one setting is enough.
TEST(ArenaTensors, WhatAUserLetsMallocKeepIsKeptHere) {
  alone([] {
    ::setenv("MALLOC_TRIM_THRESHOLD_", "8388608", 1);
    auto arena = std::make_shared<Arena>(512 * mebibyte);
    ArenaTensors tensors(arena, 512 * mebibyte);
    bytes_tensor(50 * mebibyte).fill_(3);
    EXPECT_LE(arena->resident_bytes(), 12 * mebibyte);
  });
}

// Reserves no more address space than is available.
TEST(ArenaTensors, GetNoMoreAddressSpaceThanThereIs) {
  alone([] {
    auto memory = static_cast<std::size_t>(sys::memory_size().total);
    EXPECT_EQ(shm::bytes_for_tensors(mebibyte, 2), memory / 4096 * 4096);
    EXPECT_EQ(shm::bytes_for_tensors(std::size_t{1} << 40, 256), 0U) << "no process maps so much";
    std::size_t used = 0;
    std::ifstream("/proc/self/statm") >> used;
    rlimit limit{used * 4096 + 1024 * mebibyte, RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    auto of_few = shm::bytes_for_tensors(mebibyte, 2);
    EXPECT_LE(2 * of_few, 600 * mebibyte);
    EXPECT_GE(2 * of_few, 100 * mebibyte);
    auto arena = std::make_shared<Arena>(of_few);
    EXPECT_EQ(shm::bytes_for_tensors(4096 * mebibyte, 2), 0U);
  });
}

TEST(ArenaTensors, GetNoMoreThanAFileMayHave) {
  alone([] {
    rlimit limit{100 * mebibyte, 100 * mebibyte};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(shm::bytes_for_tensors(64 * mebibyte, 2), 36 * mebibyte);
    auto arena = std::make_shared<Arena>(100 * mebibyte);
    ArenaTensors tensors(arena, 36 * mebibyte, ArenaTensors::Pages::at_once);
    EXPECT_TRUE(is_in(*arena, bytes_tensor(36 * mebibyte).fill_(1)));
  });
}

TEST(ArenaTensors, AreReducedWhereTheyLie) {
  test::run_group(test::BackendKind::shm, 3, [](Group group) {
    auto tensor = at::full({1'000'000}, static_cast<double>(group.rank() + 1), at::kFloat);
    group.all_reduce(tensor).wait();
    EXPECT_TRUE((tensor == 6).all().item<bool>());
    std::vector<float> outside(1'000'000, static_cast<float>(group.rank() + 1));
    auto blob = at::from_blob(outside.data(), {1'000'000}, at::kFloat);
    group.all_reduce(blob).wait();
    EXPECT_TRUE((blob == 6).all().item<bool>());
  });
}

}  // namespace
