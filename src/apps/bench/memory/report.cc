#include "apps/bench/memory/report.h"

#include "apps/bench/spread.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include <nlohmann/json.hpp>

#include <cstdio>

namespace lockstep::apps {
namespace {

void print_json(const MemoryRow& row) {
  Spread seconds = spread_of(row.seconds);
  nlohmann::ordered_json object{
      {"bench", "memory"},    {"system", "lockstep"},         {"model", row.model},
      {"mode", row.mode},     {"ranks", row.ranks},           {"min_s", seconds.min},
      {"p50_s", seconds.p50}, {"bytes", row.bytes},           {"row", row.kind},
      {"dtype", row.dtype},   {"parameters", row.parameters}, {"expected_bytes", row.expected},
      {"ratio", row.ratio()}, {"units_bytes", row.units},     {"peak_units_bytes", row.peak_units}};
  if (row.goal) object["met"] = row.goal->met(row.ratio());
  if (row.limit > 0) object["limit_bytes"] = row.limit;
  print_to(stdout, "{}\n", object.dump());
}

void print_line(const MemoryRow& row) {
  auto parameters = static_cast<double>(row.parameters);
  print_to(stdout, "{:<12}{:<16}{:<18}{:<9}{:>2}{:>11}{:>9.3f}{:>9.3f}{:>8.3f}  {}", row.kind,
           row.model, row.mode, row.dtype, row.ranks, format_bytes(row.bytes),
           static_cast<double>(row.bytes) / parameters, row.expected / parameters, row.ratio(),
           row.goal ? verdict_of(*row.goal, row.ratio()) : "no goal");
  if (row.peak_units > 0) print_to(stdout, "; in flight {}", format_bytes(row.peak_units));
  if (row.limit > 0) print_to(stdout, "; limit {}: trained", format_bytes(row.limit));
  print_to(stdout, "\n");
}

}  // namespace

void print_heading() {
  print_to(stdout, "{:<12}{:<16}{:<18}{:<9}{:>2}{:>11}{:>9}{:>9}{:>8}\n", "memory", "model", "mode",
           "dtype", "N", "bytes", "/ param", "expected", "ratio");
}

void print(const MemoryRow& row, bool json) {
  json ? print_json(row) : print_line(row);
  std::fflush(stdout);
}

}  // namespace lockstep::apps
