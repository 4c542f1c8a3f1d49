// The faults that the simulated accelerator has found. A test fails if reports are left at its end.
#pragma once

#include <iosfwd>
#include <set>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

enum class Fault {
  race,           // two accesses of a byte, one of them a write, that nothing orders
  reuse,          // the same, and the block was freed and given out again, or could have been
  freed,          // a launch that uses freed memory, or memory outside of its block
  uninitialised,  // a kernel reads memory that nothing has written since its allocation
  kernel,         // an operation threw on the device
  touch,          // host code accessed device memory, or pinned memory of a copy in flight
  order,          // ranks or devices launch collectives in different orders
  stall,          // a host waits and no stream can go on
  context,        // a thread without a current device destroyed an event of a device other than 0
};

struct Report {
  Fault fault;
  std::string text;
};

std::ostream& operator<<(std::ostream& out, const Report& report);

// Not thread-safe: guarded by the machine's mutex.
class Reports {
 public:
  // Adds a report unless one with the same `fault` and `text` exists; `place` is not compared.
  void add(Fault fault, const std::string& text, const std::string& place = {});
  [[nodiscard]] std::vector<Report> take();

 private:
  std::vector<Report> reports_;
  std::set<std::pair<Fault, std::string>> seen_;
};

}  // namespace lockstep::test::accelerator
