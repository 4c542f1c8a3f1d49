// GeneratorCheck: whether all ranks draw from generators in the same state. Random operations on
// global tensors draw the same numbers on every rank (rules/random.cc); with other ones on some
// rank nothing fails: dropout is another one in each part of a tensor, and the numbers are wrong.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Generator.h>

#include <cstdint>
#include <mutex>
#include <string_view>

namespace lockstep::global {

class GeneratorCheck {
 public:
  // Before an operation draws from it. The first draw is compared over the group, and so is each
  // whose number is a power of two, counted from the last time that the generator was seeded:
  // collective then. Mismatch on all ranks where states differ. A rank that seeds alone makes a
  // call that the others do not make, which they are told of by their next one. Any thread.
  void look(at::Generator generator, std::string_view operation, Group& group);

 private:
  std::mutex mutex_;
  std::uint64_t count_ = 0, seed_ = 0;
};

}  // namespace lockstep::global
