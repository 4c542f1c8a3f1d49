// lockstep-report: `lockstep report hang FILE...`.
#include "apps/report/hang.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/program.h"

#include <lockstep/base/error.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lockstep::apps;
using lockstep::CommandOptions, lockstep::UsageError, lockstep::print_to;

constexpr const char* about =
    "Reads flight records (flight-rank-N.json), one of each rank, and says which rank waits in\n"
    "which call for how long, which rank never made it, where the ranks' calls first differ, and\n"
    "what all of them completed last. Ranks write them when a group fails, into the folder that\n"
    "LOCKSTEP_FLIGHT names; `lockstep run` names one and prints it.\n"
    "\n"
    "Exit code 0; 1 when a file could not be read (the others are explained); 2 for a mistake in\n"
    "the command.\n";

int report_hang(const std::vector<std::string>& paths) {
  int code = 0;
  std::vector<FlightFile> files;
  for (const std::string& path : paths) {
    try {
      files.push_back(read_flight_file(path));
    } catch (const lockstep::BadInput& error) {
      print_to(stderr, "lockstep report hang: {}\n", error.what());
      code = 1;
    }
  }
  if (files.empty()) return 1;
  try {
    for (const std::string& line : explain_hang(files)) print_to(stdout, "{}\n", line);
  } catch (const lockstep::BadInput& error) {
    print_to(stderr, "lockstep report hang: {}\n", error.what());
    return 1;
  }
  return code;
}

int report(const std::vector<std::string>& given) {
  CommandOptions options("lockstep report", "hang FILE...", about, CommandOptions::Words::allowed);
  const auto request = options.read(given);
  if (const auto code = lockstep::sys::answer(request, options)) return *code;
  const std::vector<std::string>& words = options.words();
  if (words.empty()) throw UsageError("name a report: hang");
  const std::vector<std::string_view> known{"hang"};
  if (words.front() != known.front())
    throw UsageError(lockstep::unknown_name("report", words.front(), known));
  if (words.size() == 1)
    throw UsageError(
        "hang: no file was named: give the flight records, such as flight-rank-*.json");
  return report_hang({words.begin() + 1, words.end()});
}

}  // namespace

int main(int count, char** arguments) {
  return lockstep::sys::run_program("lockstep report", [&] {
    return report({arguments + 1, arguments + count});
  });
}
