#include "elastic/round_fence.h"

#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/file_descriptor.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <lockstep/base/error.h>

#include <cerrno>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_bytes = 4096;

std::string text_of(const RoundOfRun& of) { return formatted("{} {}\n", of.run, of.round); }

// Returns the content of the file, or std::nullopt if the file is missing or invalid.
std::optional<RoundOfRun> round_in(const fs::path& file) {
  if (!sys::exists(file)) return std::nullopt;
  const std::string text = sys::read_plain_file(file, most_bytes);
  const std::size_t blank = text.rfind(' ');
  if (blank == std::string::npos || !text.ends_with('\n')) return std::nullopt;
  const auto round = parse_integer(text.substr(blank + 1, text.size() - blank - 2));
  if (!round) return std::nullopt;
  return RoundOfRun{text.substr(0, blank), *round};
}

// Replaces the text of an existing file. Returns false if that fails.
bool overwrite(const fs::path& file, const std::string& text) {
  const sys::FileDescriptor opened(
      ::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const auto size = static_cast<ssize_t>(text.size());
  return opened && ::pwrite(opened.get(), text.data(), text.size(), 0) == size &&
         ::ftruncate(opened.get(), size) == 0;
}

// Only processes of this run read the file, and a run does not survive a crash of its hosts. On a
// full disk, which has no room for a second file, overwrites the file in place. A process of an
// earlier round may then read a part of the new text: it does not find its own round and stops, as
// it would a moment later.
void write_round(const fs::path& file, const std::string& text) {
  try {
    sys::AtomicFile::write_for_now(file, text);
  } catch (const SystemError& error) {
    const bool is_full = error.error_number() == ENOSPC || error.error_number() == EDQUOT;
    if (!is_full || !overwrite(file, text)) throw;
  }
}

}  // namespace

RoundFence::RoundFence(const fs::path& out, RoundOfRun own)
    : file_(out / ".round"), own_(std::move(own)) {}

bool RoundFence::is_of_earlier_round() const {
  const std::optional<RoundOfRun> found = round_in(file_);
  return found && found->run == own_.run && found->round < own_.round;
}

void RoundFence::take() {
  const std::optional<RoundOfRun> found = round_in(file_);
  if (found && found->run == own_.run && found->round > own_.round)
    throw PeerLost(formatted("{}: round {} of this run writes here; this is round {}",
                             file_.parent_path().string(), found->round, own_.round));
  const bool is_own = found && found->run == own_.run && found->round == own_.round;
  if (!is_own) write_round(file_, text_of(own_));
  is_taken_ = true;
}

void RoundFence::check() const {
  if (!is_taken_) return;
  const std::optional<RoundOfRun> found = round_in(file_);
  if (found && found->run == own_.run && found->round == own_.round) return;
  throw PeerLost(formatted(
      "{}: expected round {} of run {}, which this process belongs to, found {}; it writes nothing "
      "there any more",
      file_.string(), own_.round, own_.run,
      found ? formatted("round {} of run {}", found->round, escaped(found->run, 80))
            : std::string("no round")));
}

}  // namespace lockstep
