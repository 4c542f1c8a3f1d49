// Runs a function in a forked child; returns how the child ended and its standard error.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::test {

struct ChildResult {
  int status = -1;
  std::string text;
};

inline ChildResult in_child(const std::function<int()>& body) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::_exit(body());
  }
  ::close(ends[1]);
  ChildResult result;
  for (char byte = 0; ::read(ends[0], &byte, 1) == 1;) result.text += byte;
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(child, &result.status, 0), child);
  return result;
}

}  // namespace lockstep::test
