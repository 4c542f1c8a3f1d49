// What the records of several ranks say about one group: where they first differ, which ranks wait
// in which call, which never came.
#pragma once

#include "apps/report/flight_file.h"
#include "comm/call/group_names.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

class GroupHistory {
 public:
  // `now`: when the last of the records was written, in seconds since 1970. `parts` are those of
  // the ranks that have a record of the group, each of another file.
  GroupHistory(const std::vector<FlightFile>& files, const std::vector<FlightPart>& parts,
               std::string name, double now);

  // Empty where the group has nothing to tell: nothing open, nothing different, no failure.
  [[nodiscard]] std::vector<std::string> tell() const;

 private:
  // The calls of one rank that are numbered together, by their number.
  using Line = std::map<std::uint64_t, const FlightCall*>;
  struct Part {
    const FlightFile* file = nullptr;
    const FlightGroup* group = nullptr;
    int number = 0;  // in the group
    Line collectives;
    std::map<int, Line> sends, receives;  // by the peer's number
  };
  // A call that ranks wait in, and those that have not made it.
  struct Open {
    std::uint64_t sequence = 0;
    std::vector<int> waiting, missing;  // ranks of the world
    const FlightCall* call = nullptr;
    double since = 0;
  };

  [[nodiscard]] std::optional<std::string> difference() const;
  [[nodiscard]] std::string shift(const Part& odd, const Part& other, std::uint64_t at) const;
  [[nodiscard]] std::optional<Open> open() const;
  [[nodiscard]] std::string told(const Open& open) const;
  [[nodiscard]] std::optional<std::string> last_common() const;
  void tell_messages(std::vector<std::string>& lines) const;
  void tell_failures(std::vector<std::string>& lines) const;
  // "its last call was ..., 12.3s before", wherever that call was made.
  [[nodiscard]] std::string last_of(int rank) const;
  [[nodiscard]] std::string ago(double time) const;
  [[nodiscard]] const std::string& name() const { return names_.name(); }

  const std::vector<FlightFile>& files_;
  const double now_;
  std::vector<int> members_;
  GroupNames names_;
  std::vector<Part> parts_;
};

}  // namespace lockstep::apps
