// A failure that ends several ranks is shown once. Ranks whose group dies say why in one marked
// line on standard error, all in the same words (launch::failure_mark), and most programs then
// print the exception as well: of all these lines the first is shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

class SharedFailures {
 public:
  struct Failure {
    std::string sentence;
    std::vector<int> ranks;  // that said it, in the order in which they did
  };

  // What is to be shown of `text`, which are lines of that rank's standard error; the last one may
  // lack its end.
  [[nodiscard]] std::string take(int rank, std::string_view text);
  // Whether the line only repeats what was shown, or announces it.
  [[nodiscard]] bool is_repeated(std::string_view line) const;
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }

 private:
  [[nodiscard]] bool shows(int rank, std::string_view line);

  std::vector<Failure> failures_;
};

}  // namespace lockstep::launch
