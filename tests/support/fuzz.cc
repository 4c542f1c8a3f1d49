#include "support/fuzz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace lockstep::test {
namespace {

constexpr std::chrono::milliseconds short_time{500};

std::uint64_t edge_number(Random& random) {
  constexpr std::uint64_t edges[] = {0,          1,          2,          0x7f,    0x80,
                                     0xff,       0xffff,     0x10000,    0x10001, 0x7fffffff,
                                     0x80000000, 0xffffffff, 0x100000000};
  auto edge = edges[below(random, std::size(edges))];
  switch (below(random, 4)) {
    case 0:
      return ~edge;
    case 1:
      return edge + below(random, 64);
    default:
      return edge;
  }
}

void set_number(std::string& bytes, std::size_t place, Random& random) {
  constexpr std::size_t widths[] = {1, 4, 8};
  auto width = std::min(widths[below(random, 3)], bytes.size() - place);
  auto number = edge_number(random);
  bool big_endian = one_in(random, 4);
  if (big_endian) number = __builtin_bswap64(number) >> (64 - 8 * width);
  std::memcpy(bytes.data() + place, &number, width);
}

void change(std::string& bytes, Random& random) {
  std::size_t place = below(random, bytes.size() + 1);
  std::size_t left = bytes.size() - place;
  switch (below(random, 7)) {
    case 0:
      bytes.resize(place);
      break;
    case 1:
      bytes.insert(place, random_bytes(random, 1 + below(random, 16)));
      break;
    case 2:
      bytes.insert(place, bytes.substr(below(random, bytes.size() + 1), 1 + below(random, 64)));
      break;
    case 3:
      bytes.erase(place, 1 + below(random, 16));
      break;
    case 4:
      if (left > 0) bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(random, 8)));
      break;
    case 5:
      if (left > 0) bytes[place] = static_cast<char>(below(random, 256));
      break;
    default:
      if (left > 0) set_number(bytes, place, random);
  }
}

void change(std::vector<std::string>& pieces, Random& random,
            const std::vector<std::string>& others) {
  if (pieces.empty()) return;
  std::size_t place = below(random, pieces.size());
  switch (below(random, 6)) {
    case 0:
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(place));
      break;
    case 1: {
      std::string again = pieces[place];
      pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(below(random, pieces.size() + 1)),
                    std::move(again));
      break;
    }
    case 2:
      std::swap(pieces[place], pieces[below(random, pieces.size())]);
      break;
    case 3:
      if (!others.empty()) pieces[place] = others[below(random, others.size())];
      break;
    default:
      pieces[place] = mutated(pieces[place], random);
  }
}

}  // namespace

std::size_t below(Random& random, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

std::string random_bytes(Random& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string mutated(std::string bytes, Random& random) {
  for (std::size_t changes = 1 + below(random, 4); changes > 0; --changes) change(bytes, random);
  return bytes;
}

std::vector<std::string> mutated(std::vector<std::string> pieces, Random& random,
                                 const std::vector<std::string>& others) {
  for (std::size_t changes = 1 + below(random, 3); changes > 0; --changes) {
    change(pieces, random, others);
  }
  return pieces;
}

FuzzRounds::FuzzRounds(std::string_view name, std::uint64_t share)
    : name_(name), seed_(std::random_device()()), end_(std::chrono::steady_clock::now()) {
  read_environment(share);
  std::printf("%s: seed %llu\n", name_.c_str(), static_cast<unsigned long long>(seed_));
  std::fflush(stdout);  // the test may crash
}

void FuzzRounds::read_environment(std::uint64_t share) {
  fewest_ = std::min<std::uint64_t>(fewest_, 2000 / share);
  if (const char* again = std::getenv("LOCKSTEP_FUZZ_SEED"); again != nullptr) {
    char* round = nullptr;
    seed_ = std::strtoull(again, &round, 10);
    if (*round == ':') {
      first_ = std::strtoull(round + 1, nullptr, 10);
      limit_ = 1;
      return;
    }
  }
  if (const char* rounds = std::getenv("LOCKSTEP_FUZZ"); rounds != nullptr) {
    limit_ = (std::strtoull(rounds, nullptr, 10) + share - 1) / share;
  }
  end_ += short_time;
}

FuzzRounds::~FuzzRounds() {
  bool failed = testing::Test::HasFailure() || std::uncaught_exceptions() > 0;
  std::printf("%s: %llu rounds", name_.c_str(), static_cast<unsigned long long>(count_));
  if (failed) {
    std::printf("; LOCKSTEP_FUZZ_SEED=%llu:%llu repeats the one that failed",
                static_cast<unsigned long long>(seed_),
                static_cast<unsigned long long>(first_ + count_ - 1));
  }
  std::printf("\n");
}

bool FuzzRounds::next() {
  if (testing::Test::HasFailure()) return false;
  bool more =
      limit_ > 0 ? count_ < limit_ : count_ < fewest_ || std::chrono::steady_clock::now() < end_;
  if (!more) return false;
  std::seed_seq numbers{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32),
                        static_cast<std::uint32_t>(first_ + count_),
                        static_cast<std::uint32_t>((first_ + count_) >> 32)};
  random_.seed(numbers);
  ++count_;
  return true;
}

}  // namespace lockstep::test
