// How the ranks of a dying group agree on why: each that notices leaves its current call in the
// store before it closes its connections (which the others notice), and the first of them reads all
// and writes the verdict that all throw.
//
// Keys, under "lockstep/end/<group>/": "at/<rank>" is "<fingerprint> <described call>"; "judge" the
// rank that writes the verdict; "verdict" a letter for the kind of error and its text.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "comm/posted_call.h"

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::c10d_engine {

// What this rank noticed.
enum class End { lost, timeout, aborted };

class LastWords {
 public:
  LastWords(std::shared_ptr<Store> store, std::string group, int rank, int size);

  // The error that all ranks of the group throw. `close` ends this rank's connections. `detail` is
  // what the engine said, or the reason of an abort. Takes about a second at most; never throws.
  [[nodiscard]] std::exception_ptr agree(End end, const PostedCall& call, std::string_view detail,
                                         const std::function<void()>& close) noexcept;

 private:
  struct Verdict;
  [[nodiscard]] Verdict judge(End end, const PostedCall& call, std::string_view detail);
  [[nodiscard]] Verdict read_or_judge(End end, const PostedCall& call, std::string_view detail,
                                      const std::function<void()>& close);
  [[nodiscard]] std::string key(std::string_view name) const;

  std::shared_ptr<Store> store_;
  std::string group_;
  int rank_;
  int size_;
};

}  // namespace lockstep::c10d_engine
