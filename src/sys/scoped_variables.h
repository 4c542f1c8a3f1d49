// Environment variables of this process with other values for a while: for a library that reads
// them while one of its objects is made, in a program that sets them for objects of its own.
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::sys {

// Sets the variables, and gives them their former values when it is destroyed; one that was not set
// is unset again. The constructor blocks while another object of this class lives. No other thread
// may read the environment at these two moments, as for setenv().
class ScopedVariables {
 public:
  explicit ScopedVariables(std::span<const std::pair<const char*, const char*>> values);
  ~ScopedVariables();
  ScopedVariables(const ScopedVariables&) = delete;
  ScopedVariables& operator=(const ScopedVariables&) = delete;

 private:
  std::unique_lock<std::mutex> alone_;
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

}  // namespace lockstep::sys
