// One of the two systems that a benchmark compares: rank processes that are started once and then
// work only when told to.
//
// A rank says `{"ready": true, "fused": ...}`, with the kind of AdamW that it has, and then answers
// each line on its standard input, a number of steps, by
// `{"seconds": [...], "losses": [...]}`. Between lines it is blocked in a read and uses no
// processor; when its input ends it ends.
#pragma once

#include "sys/file_descriptor.h"
#include "sys/process.h"

#include <string>
#include <vector>

namespace lockstep::apps {

struct SideCommand {
  std::string name;  // "lockstep", "pytorch"
  std::string program;
  std::vector<std::string> arguments;  // without argv[0]
  int ranks = 1;
  int threads = 1;
};

class Side {
 public:
  // Starts the ranks; they make themselves ready while the caller goes on.
  explicit Side(SideCommand command);
  // Ends the ranks and waits for them.
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // Blocks until every rank is ready. Throws Error when one ended instead; what it said is on
  // standard error.
  void wait_until_ready();
  // Lets all ranks make `steps` steps and returns the seconds of each, on the rank that took
  // longest for it.
  [[nodiscard]] std::vector<double> run(int steps);

  [[nodiscard]] const std::string& name() const { return command_.name; }
  // Losses of rank 0's first steps.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  // What was measured so far does not count.
  void forget() { seconds_.clear(); }
  // Whether rank 0's AdamW is one pass over memory, as it said itself.
  [[nodiscard]] bool is_fused() const { return is_fused_; }
  // Seconds of every step since.
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }

 private:
  struct Rank {
    sys::Process process;
    sys::FileDescriptor input;   // we write
    sys::FileDescriptor output;  // we read
    std::string unread;
  };

  void start(int rank, int port);
  [[nodiscard]] std::string read_line(int rank);

  SideCommand command_;
  std::vector<Rank> ranks_;
  bool is_fused_ = false;
  std::vector<double> losses_;
  std::vector<double> seconds_;
};

}  // namespace lockstep::apps
