// Combines the records of several ranks for one group: where they first differ, which ranks wait in
// which call, and which ranks never made it.
#pragma once

#include "apps/report/flight_file.h"
#include "comm/call/record.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

class GroupHistory {
 public:
  // `now` is the time at which the last record was written, in seconds since 1970. `parts` belong
  // to the ranks that have a record of the group, each in its own file.
  GroupHistory(const std::vector<FlightFile>& files, const std::vector<FlightPart>& parts,
               std::string name, double now);

  // Returns nothing if there is nothing to report: no open call, no difference, no failure.
  [[nodiscard]] std::vector<std::string> tell() const;

 private:
  // Calls of one rank that are numbered together, by their number.
  using Line = std::map<std::uint64_t, const FlightCall*>;
  struct Part {
    const FlightFile* file = nullptr;
    const FlightGroup* group = nullptr;
    int number = 0;  // rank in the group
    Line collectives;
    std::map<int, Line> sends, receives;  // by the peer's rank
  };
  // A call in which some ranks wait, and the ranks that have not made it.
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
  // Returns "its last call was ..., 12.3s before", for the rank's last call in any group.
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
