#include "support/accelerator/reports.h"

#include <iterator>
#include <ostream>
#include <utility>

namespace lockstep::test::accelerator {
namespace {

const char* name_of(Fault fault) {
  constexpr const char* names[] = {"race",  "reuse", "freed", "uninitialised", "kernel",
                                   "touch", "order", "stall", "context"};
  static_assert(std::size(names) == static_cast<std::size_t>(Fault::context) + 1);
  return names[static_cast<int>(fault)];
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Report& report) {
  return out << name_of(report.fault) << ": " << report.text;
}

void Reports::add(Fault fault, const std::string& text, const std::string& place) {
  if (seen_.emplace(fault, text).second) reports_.push_back({fault, text + place});
}

std::vector<Report> Reports::take() {
  seen_.clear();
  return std::exchange(reports_, {});
}

}  // namespace lockstep::test::accelerator
