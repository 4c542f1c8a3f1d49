#include "comm/diagnose/flight_file.h"

#include "base/format.h"
#include "base/visible.h"
#include "sys/topology.h"

#include <array>
#include <string_view>

#include <unistd.h>

namespace lockstep::diagnose {
namespace {

std::string_view name_of(Progress progress) {
  constexpr std::array<std::string_view, 6> names{"posting", "posted", "waiting",
                                                  "done",    "failed", "refused"};
  return names.at(static_cast<std::size_t>(progress));
}

// Tags are truncated at a number of bytes, possibly inside a character: invalid UTF-8 becomes the
// replacement character.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  while (!text.empty()) {
    const auto letter = first_character(text);
    const auto bytes = letter ? letter->bytes : 1;
    const char32_t code = letter ? letter->code_point : U'\ufffd';
    if (code == U'"' || code == U'\\') result += '\\';
    if (code < 0x20 || !letter)
      result += formatted("\\u{:04x}", static_cast<unsigned>(code));
    else
      result += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return result + '"';
}

// Builds {"a": 1, "b": "x"}, member by member.
class Object {
 public:
  Object& text(std::string_view name, std::string_view value) { return raw(name, quoted(value)); }
  template <typename Number>
  Object& number(std::string_view name, Number value) {
    return raw(name, formatted("{}", value));
  }
  Object& time(std::string_view name, double seconds) {
    return raw(name, formatted("{:.6f}", seconds));
  }
  Object& raw(std::string_view name, std::string_view value) {
    text_ += formatted("{}\"{}\": {}", text_.empty() ? "" : ", ", name, value);
    return *this;
  }
  [[nodiscard]] std::string str() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

std::string json_of(const RecordedGroup& group) {
  Object object;
  object.text("name", group.name).raw("members", formatted("[{}]", listed(group.members, ", ")));
  if (!group.failure.empty()) object.text("failure", group.failure).time("failed", group.failed);
  return object.str();
}

std::string json_of(const FlightEntry& entry, const sys::TimestampScale& scale) {
  Object object;
  object.number("number", entry.number)
      .number("group", entry.group)
      .text("call", lockstep::name_of(entry.collective))
      .number("sequence", entry.sequence);
  if (combines(entry.collective)) object.text("op", lockstep::name_of(entry.op));
  if (has_root(entry.collective)) object.number("root", entry.root);
  if (is_message(entry.collective)) object.number("peer", entry.root);
  if (entry.dtype) {
    object.text("dtype", lockstep::name_of(*entry.dtype))
        .number("elements", entry.elements)
        .number("bytes", entry.elements * static_cast<std::int64_t>(bytes_of(*entry.dtype)));
  }
  if (entry.counts != 0) object.text("counts", formatted("{:016x}", entry.counts));
  if (!entry.tag.empty()) object.text("tag", entry.tag);
  object.time("posted", scale.seconds_of(entry.posted));
  if (entry.done != 0) object.time("ended", scale.seconds_of(entry.done));
  std::string_view file = entry.file ? entry.file : "";
  object.text("progress", name_of(entry.progress))
      .text("where", formatted("{}:{}", file.substr(file.rfind('/') + 1), entry.line));
  return object.str();
}

}  // namespace

std::string to_json(const FlightHeader& header, std::span<const RecordedGroup> groups,
                    std::span<const FlightEntry> entries, std::uint64_t calls_ever,
                    const sys::TimestampScale& scale) {
  std::vector<std::string> group_texts;
  std::vector<std::string> call_texts;
  for (const auto& group : groups) group_texts.push_back(json_of(group));
  for (const auto& entry : entries) call_texts.push_back(json_of(entry, scale));
  Object object;
  object.number("lockstep_flight_record", 1)
      .number("rank", header.rank)
      .number("size", header.size)
      .text("engine", header.engine)
      .text("host", sys::host_name())
      .number("pid", ::getpid())
      .time("written", scale.seconds_of(sys::timestamp()))
      .number("calls_ever", calls_ever)
      .raw("groups", formatted("[\n  {}]", listed(group_texts, ",\n  ")))
      .raw("calls", formatted("[\n  {}]", listed(call_texts, ",\n  ")));
  return object.str() + "\n";
}

}  // namespace lockstep::diagnose
