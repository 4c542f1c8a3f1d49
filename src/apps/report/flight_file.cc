#include "apps/report/flight_file.h"

#include <lockstep/base/check.h>
#include <lockstep/base/text.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <tuple>

namespace lockstep::apps {

namespace {

using Json = nlohmann::json;

constexpr int known_version = 1;
constexpr std::int64_t most_bytes = 256 << 20;
constexpr int most_ranks = 1 << 20;
constexpr double most_seconds = 1e11;  // some thousand years

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check_input(file.good(), "{}: {}", path, std::strerror(errno));
  std::string text, piece(1 << 20, '\0');
  while (file && text.size() <= most_bytes) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    text.append(piece, 0, static_cast<std::size_t>(file.gcount()));
  }
  check_input(!file.bad(), "{}: cannot be read", path);
  check_input(text.size() <= most_bytes, "{}: no flight record is larger than {}", path,
              format_bytes(most_bytes));
  return text;
}

// Fit for a terminal.
std::string tidy(std::string text) {
  auto is_control = [](unsigned char letter) { return letter < 32 || letter == 127; };
  std::ranges::replace_if(text, is_control, '?');
  return text;
}

std::string text_of(const Json& json, const char* key) { return tidy(json.value(key, "")); }

double seconds_of(const Json& json, const char* key) {
  const double seconds = json.at(key).get<double>();
  check_input(seconds >= 0 && seconds <= most_seconds, "'{}' is {} seconds after 1970", key,
              seconds);
  return seconds;
}

FlightCall call_of(const Json& json, std::size_t groups) {
  FlightCall call;
  call.number = json.at("number").get<std::uint64_t>();
  call.group = json.at("group").get<std::size_t>();
  check_input(call.group < groups, "call {} is of group {} of {}", call.number, call.group, groups);
  call.call = tidy(json.at("call").get<std::string>());
  call.sequence = json.at("sequence").get<std::uint64_t>();
  call.op = text_of(json, "op");
  call.dtype = text_of(json, "dtype");
  call.tag = text_of(json, "tag");
  call.counts = text_of(json, "counts");
  call.where = tidy(json.at("where").get<std::string>());
  call.root = json.value(call.is_message() ? "peer" : "root", -1);
  call.elements = json.value("elements", std::int64_t{-1});
  call.posted = seconds_of(json, "posted");
  call.ended = json.contains("ended") ? seconds_of(json, "ended") : 0;
  call.progress = json.at("progress").get<std::string>();
  return call;
}

FlightFile file_of(const Json& json) {
  FlightFile file;
  file.rank = json.at("rank").get<int>();
  file.size = json.at("size").get<int>();
  file.engine = tidy(json.at("engine").get<std::string>());
  file.host = tidy(json.at("host").get<std::string>());
  file.written = seconds_of(json, "written");
  for (const Json& group : json.at("groups")) {
    file.groups.push_back({tidy(group.at("name").get<std::string>()),
                           group.at("members").get<std::vector<int>>(), text_of(group, "failure")});
  }
  for (const Json& call : json.at("calls")) file.calls.push_back(call_of(call, file.groups.size()));
  check_input(file.rank >= 0 && file.rank < file.size && file.size <= most_ranks,
              "it is of rank {} of {}", file.rank, file.size);
  return file;
}

}  // namespace

FlightFile read_flight_file(const std::string& path) {
  const std::string text = content_of(path);
  const Json json = Json::parse(text, nullptr, false);
  check_input(!json.is_discarded() || text.find("lockstep_flight_record") == std::string::npos,
              "{}: the flight record is cut short: {} bytes that are no whole JSON", path,
              text.size());
  check_input(json.is_object() && json.contains("lockstep_flight_record"),
              "{}: no flight record of Lockstep", path);
  const Json& version = json["lockstep_flight_record"];
  check_input(version == known_version,
              "{}: a flight record of version {}; this program reads version {}", path,
              version.is_number() ? version.dump() : "unknown", known_version);
  try {
    FlightFile file = file_of(json);
    file.path = path;
    return file;
  } catch (const std::exception& error) {
    std::string_view what = error.what();  // of the JSON library: "[its own name] text"
    if (what.starts_with('[')) what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    throw BadInput(formatted("{}: a flight record that makes no sense: {}", path, what));
  }
}

bool same_call(const FlightCall& a, const FlightCall& b) {
  if (a.is_message() != b.is_message()) return false;
  if (std::tie(a.dtype, a.elements, a.tag) != std::tie(b.dtype, b.elements, b.tag)) return false;
  return a.is_message() ||
         std::tie(a.call, a.op, a.root, a.counts) == std::tie(b.call, b.op, b.root, b.counts);
}

std::string describe(const FlightCall& call) {
  std::vector<std::string> notes;
  if (!call.op.empty()) notes.push_back(call.op);
  if (call.is_message())
    notes.push_back(formatted("{} rank {}", call.call == "send" ? "to" : "from", call.root));
  else if (call.root >= 0)
    notes.push_back(formatted("root {}", call.root));
  if (!call.dtype.empty()) notes.push_back(formatted("{} x {}", call.elements, call.dtype));
  if (!call.counts.empty()) notes.emplace_back("uneven");
  if (!call.tag.empty()) notes.push_back(call.tag);
  std::string text = formatted("{} #{}", call.call, call.sequence);
  if (!notes.empty()) text += formatted(" ({})", join(notes));
  return text + " at " + call.where;
}

}  // namespace lockstep::apps
