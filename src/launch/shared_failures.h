// A failure that ends several ranks is shown once. Ranks whose group dies say why in one line of
// the library's log on standard error, all in the same words (launch::failure_mark), and most
// programs then print the exception as well. Only lines that say nothing else are hidden:
//  - the log's line, when its sentence was shown already;
//  - the sentence alone, or after the words of the C++ runtime or of our own programs;
//  - a line that ends with the sentence and has been shown before, letter by letter: what a program
//    puts before the sentence is shown once;
//  - the line by which one of our programs says why it ends ("lockstep train: rank 1: SENTENCE"),
//    when another rank's said the same.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

class SharedFailures {
 public:
  struct Failure {
    std::string sentence;
    std::vector<int> ranks;     // that said it, in the order in which they did
    bool is_complaint = false;  // of one of our programs, and not of a group that has failed
  };

  // What is to be shown of `text`, which are lines of that rank's standard error; the last one may
  // lack its end.
  [[nodiscard]] std::string take(int rank, std::string_view text);
  // Whether the line only repeats what was shown, or announces it. Without its end.
  [[nodiscard]] bool is_repeated(std::string_view line) const;
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }
  // Returns true if one of our programs has said on this rank why it ends.
  [[nodiscard]] bool has_complained(int rank) const;

 private:
  [[nodiscard]] bool is_new(std::string_view sentence, int rank, bool is_complaint);
  [[nodiscard]] bool shows(int rank, std::string_view line);
  [[nodiscard]] bool ends_with_one(std::string_view line) const;

  std::vector<Failure> failures_;
  std::set<std::string, std::less<>> shown_;  // lines that end with one of the sentences
};

}  // namespace lockstep::launch
