// Rank processes that are started once and then work only when told to, in lines of text.
//
// A rank reads lines and answers each by one line. Between them it is blocked in a read and uses no
// processor, so that several systems can be measured in turn on the same cores; when its input
// ends it ends.
#pragma once

#include <lockstep/base/deadline.h>

#include "sys/file_descriptor.h"
#include "sys/process.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::apps {

struct RankCommand {
  std::string name;  // of the system, for messages
  std::string program;
  std::vector<std::string> arguments;  // without argv[0]
  int ranks = 1;
  int threads = 1;
  std::vector<std::pair<std::string, std::string>> variables = {};  // besides the launcher's own
};

class RankProcesses {
 public:
  // One process a rank, in the environment that `lockstep run` would give it; it speaks on its
  // standard input and output.
  [[nodiscard]] static RankProcesses start_each(const RankCommand& command);
  // One process that starts the ranks itself, such as mpirun. Rank r reads FOLDER/in.r and writes
  // FOLDER/out.r, fifos that are made here.
  [[nodiscard]] static RankProcesses start_by_launcher(const RankCommand& command,
                                                       const std::filesystem::path& folder);
  RankProcesses(RankProcesses&&) = default;
  RankProcesses& operator=(RankProcesses&&) = delete;
  // Ends the ranks and waits for them.
  ~RankProcesses();

  [[nodiscard]] int ranks() const { return static_cast<int>(channels_.size()); }
  // The same line, without its end, to every rank.
  void tell(std::string_view line);
  // The next line of a rank. Blocks; throws Error when a process ended instead (what it said is on
  // standard error) and Timeout at the deadline.
  [[nodiscard]] std::string answer(int rank, Deadline deadline = Deadline::never());

 private:
  struct Channel {
    sys::FileDescriptor input;   // we write
    sys::FileDescriptor output;  // we read
    std::string unread = {};
  };

  explicit RankProcesses(std::string name) : name_(std::move(name)) {}
  // Waits until the rank says something more; false when it never will.
  [[nodiscard]] bool read_more(int rank, Deadline deadline);
  [[nodiscard]] bool wait_for_word(int rank, Deadline deadline);
  // How those processes ended that did.
  [[nodiscard]] std::string ends();

  std::string name_;
  std::vector<sys::Process> processes_;
  std::vector<Channel> channels_;
};

}  // namespace lockstep::apps
