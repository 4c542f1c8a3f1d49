// The end of what a rank has printed, for the report of its failure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

class LastLines {
 public:
  // Bytes as they come from one of the rank's streams.
  void add(int stream, std::string_view bytes);

  // At most `most` lines, the oldest first, made fit for a terminal: of a line that was overwritten
  // by '\r' the last state, control characters made visible, long lines cut.
  [[nodiscard]] std::vector<std::string> lines(std::size_t most) const;

 private:
  static constexpr std::size_t kept = 32 << 10;

  std::string tail_;
  int stream_ = -1;
};

}  // namespace lockstep::launch
