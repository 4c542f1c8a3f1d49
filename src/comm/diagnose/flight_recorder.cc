#include "comm/diagnose/flight_recorder.h"

#include <lockstep/base/error.h>

#include "base/escaped.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "rank_env/variables.h"
#include "sys/files.h"
#include "sys/topology.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <utility>

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

std::string json_of(const FlightEntry& entry, const TimestampScale& scale) {
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

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint64_t no_dtype = 0xff;

std::uint64_t kind_of(std::uint32_t group, const CallInfo& call) {
  auto dtype = call.dtype ? static_cast<std::uint64_t>(*call.dtype) : no_dtype;
  return static_cast<std::uint64_t>(group) | static_cast<std::uint64_t>(call.collective) << 32 |
         static_cast<std::uint64_t>(call.op) << 40 | dtype << 48;
}

std::uint64_t hash_of_counts(const CallInfo& call) {
  if (!call.is_uneven()) return 0;
  if (call.collective == Collective::all_to_all) return 1;  // each rank has its own
  return combine_fingerprints(fingerprint_of(call.input_counts),
                              fingerprint_of(call.output_counts)) |
         1;
}

}  // namespace

FlightRecorder::FlightRecorder(FlightHeader header) : header_(std::move(header)) {}

std::uint32_t FlightRecorder::add_group(std::string name, std::vector<int> members) {
  Lock lock(mutex_);
  RecordedGroup group{.name = std::move(name), .members = std::move(members)};
  if (!ended_.empty() && last_.load(relaxed) >= ended_.front().last + kept) {
    auto number = ended_.front().group;
    ended_.pop_front();
    groups_[number] = std::move(group);
    return number;
  }
  groups_.push_back(std::move(group));
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

void FlightRecorder::end_group(std::uint32_t group) noexcept {
  Lock lock(mutex_);
  if (!groups_.at(group).failure.empty()) return;
  try {
    ended_.push_back({.group = group, .last = last_.load(relaxed)});
  } catch (const std::bad_alloc&) {
    // Without memory to remember it, its number is given to no other group.
  }
}

std::uint64_t FlightRecorder::note_post(std::uint32_t group, const CallInfo& call) {
  const auto number = last_.fetch_add(1, relaxed) + 1;
  FlightSlot& to = slot(number);
  to.number.store(0, relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  to.kind.store(kind_of(group, call), relaxed);
  to.place.store(
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)) << 32 | call.where.line(),
      relaxed);
  to.sequence.store(call.id.number, relaxed);
  to.elements.store(static_cast<std::uint64_t>(call.elements), relaxed);
  to.counts.store(hash_of_counts(call), relaxed);
  to.posted.store(timestamp(), relaxed);
  to.done.store(0, relaxed);
  to.progress.store(static_cast<std::uint64_t>(Progress::posting), relaxed);
  to.file.store(call.where.file_name(), relaxed);
  to.tag.store(call.tag);
  to.number.store(number, std::memory_order_release);
  return number;
}

void FlightRecorder::note_posted(std::uint64_t number) {
  FlightSlot& to = slot(number);
  if (to.number.load(relaxed) != number) return;
  to.progress.store(static_cast<std::uint64_t>(Progress::posted), relaxed);
}

void FlightRecorder::note_wait(std::uint64_t number) {
  FlightSlot& to = slot(number);
  if (number == 0 || to.number.load(relaxed) != number || to.done.load(relaxed) != 0) return;
  to.progress.store(static_cast<std::uint64_t>(Progress::waiting), relaxed);
}

void FlightRecorder::note_end(std::uint64_t number, Progress progress) {
  FlightSlot& to = slot(number);
  if (number == 0 || to.number.load(relaxed) != number || to.done.load(relaxed) != 0) return;
  to.done.store(timestamp(), relaxed);
  to.progress.store(static_cast<std::uint64_t>(progress), relaxed);
}

std::vector<FlightEntry> FlightRecorder::entries() const {
  std::vector<FlightEntry> found;
  const auto last = last_.load(std::memory_order_acquire);
  for (auto number = last > kept ? last - kept + 1 : 1; number <= last; ++number) {
    const FlightSlot& from = slot(number);
    if (from.number.load(std::memory_order_acquire) != number) continue;
    const auto kind = from.kind.load(relaxed);
    const auto place = from.place.load(relaxed);
    FlightEntry entry{.number = number,
                      .group = static_cast<std::uint32_t>(kind),
                      .collective = static_cast<Collective>(kind >> 32 & 0xff),
                      .op = static_cast<Op>(kind >> 40 & 0xff),
                      .dtype = std::nullopt,
                      .root = static_cast<int>(static_cast<std::uint32_t>(place >> 32)),
                      .line = static_cast<std::uint32_t>(place),
                      .sequence = from.sequence.load(relaxed),
                      .elements = static_cast<std::int64_t>(from.elements.load(relaxed)),
                      .counts = from.counts.load(relaxed),
                      .posted = from.posted.load(relaxed),
                      .done = from.done.load(relaxed),
                      .progress = static_cast<Progress>(from.progress.load(relaxed)),
                      .file = from.file.load(relaxed),
                      .tag = from.tag.load()};
    if (auto dtype = kind >> 48 & 0xff; dtype != no_dtype) entry.dtype = static_cast<DType>(dtype);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (from.number.load(relaxed) == number) found.push_back(std::move(entry));
  }
  return found;
}

std::string FlightRecorder::json_locked() const {
  std::vector<std::string> group_texts;
  std::vector<std::string> call_texts;
  for (const auto& group : groups_) group_texts.push_back(json_of(group));
  for (const auto& entry : entries()) call_texts.push_back(json_of(entry, scale_));
  Object object;
  object.number("lockstep_flight_record", 1)
      .number("rank", header_.rank)
      .number("size", header_.size)
      .text("backend", header_.backend)
      .text("host", sys::host_name())
      .number("pid", ::getpid())
      .time("written", scale_.seconds_of(timestamp()))
      .number("calls_ever", last_.load(relaxed))
      .raw("groups", formatted("[\n  {}]", listed(group_texts, ",\n  ")))
      .raw("calls", formatted("[\n  {}]", listed(call_texts, ",\n  ")));
  return object.str() + "\n";
}

std::string FlightRecorder::json() {
  Lock lock(mutex_);
  return json_locked();
}

std::string FlightRecorder::write_locked(const std::string& folder) const {
  // Only the user may read the folder and the file, because the file contains file names, tags and
  // calls of the program.
  sys::make_directories(folder, 0700);
  auto path = std::filesystem::path(folder) / formatted("flight-rank-{}.json", header_.rank);
  // Other ranks wait for this rank's report, so do not wait for the disk.
  sys::AtomicFile::write_for_now(path, json_locked(), 0600);
  return path.string();
}

std::string FlightRecorder::write(const std::string& folder) {
  Lock lock(mutex_);
  return write_locked(folder);
}

void FlightRecorder::note_failure(std::uint32_t group, std::string_view sentence) noexcept {
  try {
    Lock lock(mutex_);
    auto& died = groups_.at(group);
    if (!died.failure.empty()) return;
    died.failure = sentence;
    died.failed = scale_.seconds_of(timestamp());
    if (header_.folder.empty()) return;
    auto text = std::string(rank_env::failure_mark) + died.failure;
    try {
      text += std::string(rank_env::flight_record_mark) + write_locked(header_.folder);
    } catch (const std::exception& error) {
      text += formatted("{}not written: {}", rank_env::flight_record_mark, error.what());
    }
    log::error("{}", text);
  } catch (const std::exception& error) {
    log::error("the flight record could not be written: {}", error.what());
  }
}

}  // namespace lockstep::diagnose
