#include "comm/diagnose/flight_recorder.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "rank_env/variables.h"
#include "sys/files.h"
#include "sys/topology.h"

#include <nlohmann/json.hpp>

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

using Json = nlohmann::ordered_json;

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint64_t no_dtype = 0xff;

Json json_of(const RecordedGroup& group) {
  Json json{{"name", group.name}, {"members", group.members}};
  if (!group.failure.empty()) json.update({{"failure", group.failure}, {"failed", group.failed}});
  return json;
}

// The caller checks that the slot has not changed meanwhile.
Json json_of(const FlightSlot& from, std::uint64_t number, const TimestampScale& scale) {
  const auto kind = from.kind.load(relaxed);
  const auto place = from.place.load(relaxed);
  const auto collective = static_cast<Collective>(kind >> 32 & 0xff);
  const auto root = static_cast<std::int32_t>(place >> 32);
  Json json{{"number", number},
            {"group", kind & 0xffffffff},
            {"call", lockstep::name_of(collective)},
            {"sequence", from.sequence.load(relaxed)}};
  if (combines(collective)) json["op"] = lockstep::name_of(static_cast<Op>(kind >> 40 & 0xff));
  if (has_root(collective)) json["root"] = root;
  if (is_message(collective)) json["peer"] = root;
  if (const auto type = kind >> 48 & 0xff; type != no_dtype) {
    const auto elements = from.elements.load(relaxed);
    json["dtype"] = lockstep::name_of(static_cast<DType>(type));
    json["elements"] = elements;
    json["bytes"] = elements * bytes_of(static_cast<DType>(type));
  }
  if (auto counts = from.counts.load(relaxed); counts != 0)
    json["counts"] = formatted("{:016x}", counts);
  if (auto tag = from.tag.load(); !tag.empty()) json["tag"] = tag;
  json["posted"] = scale.seconds_of(from.posted.load(relaxed));
  if (auto done = from.done.load(relaxed); done != 0) json["ended"] = scale.seconds_of(done);
  json["progress"] = name_of(static_cast<Progress>(from.progress.load(relaxed)));
  const char* path = from.file.load(relaxed);
  const std::string_view file = path != nullptr ? path : "";
  json["where"] = formatted("{}:{}", file.substr(file.rfind('/') + 1), place & 0xffffffff);
  return json;
}

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

std::string FlightRecorder::json_locked() const {
  auto groups = Json::array(), calls = Json::array();
  for (const auto& group : groups_) groups.push_back(json_of(group));
  const auto last = last_.load(std::memory_order_acquire);
  for (auto number = last > kept ? last - kept + 1 : 1; number <= last; ++number) {
    const FlightSlot& from = slot(number);
    if (from.number.load(std::memory_order_acquire) != number) continue;
    auto call = json_of(from, number, scale_);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (from.number.load(relaxed) == number) calls.push_back(std::move(call));
  }
  const Json json{{"lockstep_flight_record", 1}, {"rank", header_.rank},
                  {"size", header_.size},        {"backend", header_.backend},
                  {"streams", header_.streams},  {"host", sys::host_name()},
                  {"pid", ::getpid()},           {"written", scale_.seconds_of(timestamp())},
                  {"calls_ever", last},          {"groups", std::move(groups)},
                  {"calls", std::move(calls)}};
  // Tags are truncated at a number of bytes, possibly inside a character.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
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
