#include "apps/report/flight_file.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/call/record.h"
#include "sys/bounded_json.h"
#include "sys/plain_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>

namespace lockstep::apps {

namespace {

using Json = nlohmann::json;

constexpr int known_version = 1;
constexpr std::uint64_t most_bytes = 64 << 20;
constexpr std::int64_t most_ranks = 1 << 20;
constexpr double most_seconds = 9e9;  // the year 2255: differences in nanoseconds fit int64

std::string content_of(const std::string& path) {
  try {
    return sys::read_plain_file(path, most_bytes);
  } catch (const SystemError& error) {
    throw BadInput(formatted("{}: {}", path, std::strerror(error.error_number())));
  }
}

Json parsed(const std::string& text, const std::string& path) {
  try {
    return sys::parse_json(text);
  } catch (const sys::NotJson&) {
    check_input(text.find("lockstep_flight_record") == std::string::npos,
                "{}: the flight record is cut short: its {} bytes are not complete JSON", path,
                text.size());
    return {};
  } catch (const BadInput& error) {
    throw BadInput(formatted("{}: not a flight record: it {}", path, error.what()));
  }
}

const std::string& string_in(const Json& json, const char* key) {
  const Json& value = json.at(key);
  check_input(value.is_string(), "'{}' is not a string", key);
  return value.get_ref<const std::string&>();
}

std::string text_of(const Json& json, const char* key) {
  constexpr std::size_t longest = 1000;
  return escaped(string_in(json, key), longest);
}

std::string text_if_any(const Json& json, const char* key) {
  return json.contains(key) ? text_of(json, key) : std::string();
}

std::int64_t whole_number(const Json& value, const char* key, std::int64_t least,
                          std::int64_t most) {
  const std::optional<std::int64_t> number = sys::integer_of(value);
  check_input(number.has_value(), "'{}' is not an integer of 64 bits", key);
  check_input(*number >= least && *number <= most, "'{}' is {}, which is not from {} to {}", key,
              *number, least, most);
  return *number;
}

std::int64_t number_of(const Json& json, const char* key, std::int64_t least, std::int64_t most) {
  return whole_number(json.at(key), key, least, most);
}

double seconds_of(const Json& json, const char* key) {
  const Json& value = json.at(key);
  check_input(value.is_number(), "'{}' is not a number", key);
  const auto seconds = value.get<double>();
  check_input(seconds >= 0 && seconds <= most_seconds, "'{}' is not a time: {} seconds after 1970",
              key, seconds);
  return seconds;
}

FlightCall call_of(const Json& json, std::size_t groups) {
  FlightCall call;
  call.number = static_cast<std::uint64_t>(number_of(json, "number", 0, INT64_MAX));
  const std::int64_t group = number_of(json, "group", 0, INT64_MAX);
  check_input(group < static_cast<std::int64_t>(groups),
              "call {} is of group {}, but there are only {}", call.number, group,
              counted(static_cast<std::int64_t>(groups), "group"));
  call.group = static_cast<std::size_t>(group);
  call.call = text_of(json, "call");
  call.sequence = static_cast<std::uint64_t>(number_of(json, "sequence", 0, INT64_MAX));
  call.op = text_if_any(json, "op");
  call.dtype = text_if_any(json, "dtype");
  call.tag = text_if_any(json, "tag");
  call.counts = text_if_any(json, "counts");
  call.where = text_of(json, "where");
  if (const char* root = call.is_message() ? "peer" : "root"; json.contains(root))
    call.root = static_cast<int>(number_of(json, root, -1, most_ranks));
  if (json.contains("elements")) call.elements = number_of(json, "elements", -1, INT64_MAX);
  call.posted = seconds_of(json, "posted");
  call.ended = json.contains("ended") ? seconds_of(json, "ended") : 0;
  call.progress = text_of(json, "progress");
  return call;
}

FlightGroup group_of(const Json& json, int size) {
  FlightGroup group{
      .name = text_of(json, "name"), .members = {}, .failure = text_if_any(json, "failure")};
  const Json& members = json.at("members");
  check_input(members.is_array(), "'members' is not a list");
  for (const Json& member : members)
    group.members.push_back(static_cast<int>(whole_number(member, "members", 0, size - 1)));
  return group;
}

FlightFile file_of(const Json& json) {
  FlightFile file;
  file.size = static_cast<int>(number_of(json, "size", 1, most_ranks));
  file.rank = static_cast<int>(number_of(json, "rank", 0, file.size - 1));
  file.backend = text_of(json, "backend");
  file.host = text_of(json, "host");
  file.streams = json.value("streams", false);
  file.written = seconds_of(json, "written");
  const Json &groups = json.at("groups"), &calls = json.at("calls");
  check_input(groups.is_array() && calls.is_array(), "'groups' and 'calls' are not lists");
  for (const Json& group : groups) file.groups.push_back(group_of(group, file.size));
  for (const Json& call : calls) file.calls.push_back(call_of(call, file.groups.size()));
  return file;
}

}  // namespace

FlightFile read_flight_file(const std::string& path) {
  const std::string text = content_of(path);
  const Json json = parsed(text, path);
  check_input(json.is_object() && json.contains("lockstep_flight_record"),
              "{}: not a flight record of Lockstep", path);
  const Json& version = json["lockstep_flight_record"];
  check_input(version.is_number_integer() && version == known_version,
              "{}: a flight record of version {}; this program reads version {}", path,
              version.is_number() ? version.dump() : "unknown", known_version);
  try {
    FlightFile file = file_of(json);
    file.path = path;
    return file;
  } catch (const std::exception& error) {
    std::string_view what = error.what();  // the JSON library writes "[its own name] text"
    if (what.starts_with('[')) what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    throw BadInput(formatted("{}: invalid flight record: {}", path, escaped(what, 300)));
  }
}

bool same_call(const FlightCall& a, const FlightCall& b) {
  if (a.is_message() != b.is_message()) return false;
  if (std::tie(a.dtype, a.elements, a.tag) != std::tie(b.dtype, b.elements, b.tag)) return false;
  return a.is_message() ||
         std::tie(a.call, a.op, a.root, a.counts) == std::tie(b.call, b.op, b.root, b.counts);
}

std::string describe(const FlightCall& call, const GroupNames& group) {
  const bool has_counts = !call.counts.empty();
  return describe_fully(
      CallWords{.collective = call.call,
                .number = call.sequence,
                .tag = call.tag,
                .op = call.op,
                .root = call.root,
                .elements = has_counts && call.call == "all_to_all" ? -1 : call.elements,
                .dtype = call.dtype,
                .is_uneven = has_counts,
                .where = call.where},
      group);
}

}  // namespace lockstep::apps
