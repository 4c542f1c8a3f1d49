#include "elastic/commits.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "checkpoint/content.h"
#include "checkpoint/file_part.h"
#include "checkpoint/folders.h"
#include "checkpoint/layout_json.h"
#include "checkpoint/model_parts.h"
#include "checkpoint/optimizer_parts.h"
#include "checkpoint/rank_tensors.h"
#include "module/checks.h"
#include "sys/files.h"
#include "sys/plain_file.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using checkpoint::FilePart;

constexpr std::size_t least_text_bytes = 64 << 10;
constexpr std::size_t ignored_place = 2;  // index in Parts::files
constexpr CallOptions commit_call{.tag = "commit"};

std::vector<FilePart> own_parts(const checkpoint::NamedTensors& tensors) {
  std::vector<FilePart> parts;
  for (const auto& [name, tensor] : tensors) {
    parts.push_back(checkpoint::whole_part(name, tensor));
    parts.back().part.kind = PartKind::buffer;
  }
  return parts;
}

// Returns the newest commit of this host, or std::nullopt if another program has damaged it.
// Commits have no checksums, so only files and headers are checked.
std::optional<FoundCommit> newest_whole_commit(const fs::path& folder) {
  const std::optional<FoundCommit> found = newest_commit(folder);
  try {
    if (found) checkpoint::verify(found->generation / buffer_name(found->buffer));
    return found;
  } catch (const Error& error) {
    log::warning(
        "elastic: the state in the memory of this host is damaged ({}); the run goes back to the "
        "memory of another host, or to its newest checkpoint",
        error.what());
    return std::nullopt;
  }
}

constexpr CallOptions hosts_call{.tag = "hosts of commits"};
constexpr CallOptions transfer_call{.tag = "transfer of a commit"};
constexpr const char* received = "000000000000.received";  // sorts before all other generations

struct SentFile {
  std::string name;
  std::int64_t bytes = 0;
};

std::string text_of(const fs::path& folder) {
  std::string text;
  for (const fs::path& file : sys::entries_in(folder))
    text += formatted("{} {}\n", sys::PlainFile(file).size(), file.filename().string());
  return text;
}

std::vector<SentFile> files_in(const std::string& text) {
  std::vector<SentFile> files;
  std::istringstream lines(text);
  for (SentFile file; lines >> file.bytes >> file.name;) files.push_back(file);
  return files;
}

// Sends one file from `holder` to rank 0, piece by piece.
void send_file(Group& group, int holder, const SharedFile& file, std::int64_t bytes) {
  if (group.rank() != holder && !group.is_root()) return;
  for (std::int64_t at = 0; at < bytes; at += checkpoint::staging_bytes) {
    const at::Tensor piece = at::from_blob(
        file.data() + at, {std::min(checkpoint::staging_bytes, bytes - at)}, at::kByte);
    if (group.rank() == holder)
      group.send(piece, 0, transfer_call).wait();
    else
      group.recv(piece, holder, transfer_call).wait();
  }
}

// Throws CollectiveFailure if a file cannot be read, or rank 0 has no room.
fs::path transferred(Group& group, int holder, const fs::path& from, const fs::path& folder) {
  std::string text;
  run_on_all_or_fail(group, [&] {
    if (group.rank() == holder) text = text_of(from);
  });
  const std::vector<SentFile> files = files_in(broadcast_text(group, std::move(text), holder));
  const fs::path to = folder / received;
  std::vector<SharedFile> mapped(files.size());
  run_on_all_or_fail(group, [&] {
    if (group.is_root()) {
      if (folder.empty()) throw SystemError("keeping commits on the host of rank 0", ENOMEM);
      sys::remove_all(to);
      sys::make_directories(to);
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (group.is_root())
        mapped[i] = SharedFile::make(to / files[i].name, static_cast<std::size_t>(files[i].bytes));
      else if (group.rank() == holder)
        mapped[i] = SharedFile::open(from / files[i].name);
    }
  });
  for (std::size_t i = 0; i < files.size(); ++i)
    send_file(group, holder, mapped[i], files[i].bytes);
  return broadcast_text(group, to.string());
}

// The ranks of a host commit into the host's memory on their own. The newest commit of any host is
// sent to rank 0, which provides it to all ranks.
struct HostCommits {
  Group ranks;              // ranks of this host, in order
  fs::path folder;          // below the run's folder; empty if a rank of this host has none
  bool has_others = false;  // the group is on several hosts
};

// Collective. `of_run` is the run's folder on this rank's host; empty: none. Ranks with different
// LOCKSTEP_HOST count as different hosts, as elsewhere.
HostCommits host_commits(Group& group, const fs::path& of_run) {
  const std::string name = sys::host_of_rank();
  const std::uint64_t host = fingerprint(name);
  const auto all = modules::numbers_of_all(
      group, {static_cast<std::int64_t>(host), !of_run.empty()}, hosts_call);
  HostCommits found{.ranks = group, .folder = of_run / formatted("{:016x}", host)};
  int first = group.size();  // lowest rank of this host
  for (int rank = group.size() - 1; rank >= 0; --rank) {
    const std::size_t place = 2 * static_cast<std::size_t>(rank);
    if (static_cast<std::uint64_t>(all[place]) != host) {
      found.has_others = true;
      continue;
    }
    first = rank;
    if (all[place + 1] == 0) found.folder.clear();
  }
  if (found.has_others) found.ranks = group.split(first);
  return found;
}

// Returns the folder of the newest commit of all hosts, where rank 0 can read it. Collective; for
// each host, one rank passes the host's commit. If the commit is on another host, its files are
// sent to rank 0, into a generation that is older than all others. Empty if there is no commit, or
// if rank 0 cannot store it (a line says so).
fs::path newest_for_root(Group& group, const std::optional<FoundCommit>& own,
                         const fs::path& folder) {
  const CommitNumber number = own ? own->number : CommitNumber{};
  const auto numbers =
      modules::numbers_of_all(group, {number.round, number.generation, number.number}, hosts_call);
  std::vector<CommitNumber> all;
  for (std::size_t i = 0; i < numbers.size(); i += 3)
    all.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  const auto newest = std::ranges::max_element(all);
  if (newest->round < 0) return {};
  const int holder = static_cast<int>(newest - all.begin());
  std::string from;
  if (group.rank() == holder) from = (own->generation / buffer_name(own->buffer)).string();
  if (holder == 0) return broadcast_text(group, std::move(from));
  try {
    return transferred(group, holder, from, folder);
  } catch (const CollectiveFailure& failure) {
    if (group.is_root())
      log::warning(
          "elastic: the state in the memory of another host cannot be taken over: {}; the run goes "
          "back to its newest checkpoint",
          failure.what());
    return {};
  }
}

}  // namespace

struct Commits::Parts {
  std::vector<std::pair<const char*, std::vector<FilePart>>> files;
  checkpoint::LayoutJson json;
  std::string text;      // on the first rank of a host
  bool has_own = false;  // has values that no other rank has
};

Commits::Commits(Group group, const fs::path& folder, std::int64_t round)
    : group_(std::move(group)), round_(round) {
  HostCommits found = host_commits(group_, folder);
  local_ = std::move(found.ranks);
  folder_ = std::move(found.folder);
  has_others_ = found.has_others;
}

fs::path Commits::newest() {
  std::optional<FoundCommit> own;
  run_on_all_or_fail(group_, [&] {
    if (!local_.is_root() || !are_kept()) return;
    own = newest_whole_commit(folder_);
    remove_but(folder_, own);
  });
  return newest_for_root(group_, own, folder_);
}

// If a host is lost, so are the states of its ranks; therefore each host keeps the states of all
// ranks.
at::Tensor Commits::random_states() {
  if (!has_others_) return {};
  const at::Tensor own = checkpoint::own_random_state();
  at::Tensor all = at::empty({group_.size(), own.numel()}, own.options());
  group_.all_gather(all, own, commit_call).wait();
  return all;
}

Commits::Parts Commits::parts_of(const CommitContent& content, const at::Tensor& random) const {
  const std::vector<Part> state = content.handle.state_parts();
  Parts parts;
  parts.files = {
      {checkpoint::model_file, checkpoint::model_parts(state, /*aliases=*/false)},
      {checkpoint::optimizer_file, checkpoint::optimizer_parts(content.optimizer, content.handle)},
      {checkpoint::ignored_file, checkpoint::ignored_parts(state, group_.rank())},
      {checkpoint::random_file, random.defined() ? checkpoint::random_parts_of_all(random)
                                                 : checkpoint::random_parts(group_.rank())},
      {program_file, own_parts(content.own)}};
  parts.json = checkpoint::layout_json(content.state, content.options, group_.size());
  parts.json.files = sealed_;
  parts.has_own = !parts.files[ignored_place].second.empty();
  if (local_.is_root()) parts.text = checkpoint::json_text(parts.json);
  return parts;
}

bool Commits::fits(const Parts& parts) const {
  if (files_.empty() || parts.text.size() > text_bytes_) return false;
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (!files_[i].fits(parts.files[i].second)) return false;
  return true;
}

bool Commits::are_intact() const {
  return control_.is_intact() && std::ranges::all_of(text_, &SharedFile::is_intact) &&
         std::ranges::all_of(files_, &CommitFile::is_intact);
}

bool Commits::commit(const CommitContent& content, bool leaves) {
  Parts parts;
  std::exception_ptr error;
  const at::Tensor random = random_states();
  try {
    if (are_kept()) parts = parts_of(content, random);
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  const bool is_damaged = are_kept() && !are_intact();
  if (is_damaged && local_.is_root())
    log::warning(
        "elastic: another program has removed or truncated files in {}; they are created again",
        generation_.string());
  std::int64_t flags[] = {leaves, error != nullptr,
                          are_kept() && !error && (is_damaged || !fits(parts)), parts.has_own};
  group_.all_reduce(at::from_blob(flags, {std::ssize(flags)}, at::kLong), Op::max, commit_call)
      .wait();
  if (flags[1] != 0)
    run_on_all_or_fail(group_, [&] {
      if (error) std::rethrow_exception(error);
    });
  if (has_others_ && flags[3] != 0)
    keep_nothing("ranks on several hosts have tensors of their own (ignored ones)");
  if (are_kept()) keep(parts, flags[2] != 0);
  return flags[0] != 0;
}

void Commits::keep_nothing(const std::string& why) {
  if (!are_kept()) return;
  if (local_.is_root())
    log::warning(
        "elastic: {}; this host keeps no state in memory any more: after a failure the run goes "
        "back to its newest checkpoint, or to the memory of another host",
        why);
  folder_.clear();
}

void Commits::keep(Parts& parts, bool is_new) {
  try {
    if (is_new) plan(parts);
    const int buffer = static_cast<int>(number_ % commit_buffers);
    if (!is_made_[static_cast<std::size_t>(buffer)]) make_buffer(buffer);
    write(buffer, parts);
  } catch (const CollectiveFailure& failure) {
    std::error_code nothing_more_to_do;
    if (local_.is_root() && number_ == 0) fs::remove_all(generation_, nothing_more_to_do);
    keep_nothing(failure.what());
  }
}

void Commits::plan(const Parts& parts) {
  files_.clear();
  is_made_ = {};
  text_ = {};
  control_ = {};
  number_ = 0;
  sealed_.clear();
  for (const auto& [name, of_file] : parts.files) {
    CommitFile file(name, local_, of_file);
    files_.push_back(std::move(file));
  }
  generation_ = folder_ / generation_name(round_, generations_++);
  const auto bytes = static_cast<std::int64_t>(std::max(least_text_bytes, 2 * parts.text.size()));
  text_bytes_ =
      static_cast<std::size_t>(modules::numbers_of_all(local_, {bytes}, commit_call).front());
  modules::run_on_root_or_fail(local_, [&] {
    // The newest commit of an older generation stays until this generation has a whole one.
    remove_but(folder_, newest_commit(folder_));
    sys::make_directories(generation_);
    control_ = CommitControl::make(generation_, local_.size());
  });
  run_on_all_or_fail(local_, [&] {
    if (!local_.is_root()) control_ = CommitControl::open(generation_);
  });
}

void Commits::make_buffer(int buffer) {
  const fs::path folder = generation_ / buffer_name(buffer);
  modules::run_on_root_or_fail(local_, [&] {
    // All ranks arrive here after a whole commit, unless this is the first commit.
    if (number_ > 0) remove_before(folder_, generation_);
    make_files(buffer, folder);
  });
  run_on_all_or_fail(local_, [&] {
    if (!local_.is_root()) open_files(buffer, folder);
  });
  is_made_[static_cast<std::size_t>(buffer)] = true;
}

void Commits::make_files(int buffer, const fs::path& in) {
  sys::make_directories(in);
  for (CommitFile& file : files_)
    if (file.is_wanted()) file.make(buffer, in);
  text_[static_cast<std::size_t>(buffer)] =
      SharedFile::make(in / checkpoint::layout_file, text_bytes_);
  checkpoint::LayoutJson json;
  checkpoint::seal(json, in);
  sealed_ = std::move(json.files);
}

void Commits::open_files(int buffer, const fs::path& in) {
  for (CommitFile& file : files_)
    if (file.is_wanted()) file.open(buffer, in);
}

void Commits::write(int buffer, Parts& parts) {
  const auto at = static_cast<std::size_t>(buffer);
  control_.unmark(buffer, local_.rank());
  // All readers see the removed mark before they see the writes below.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (files_[i].is_wanted()) files_[i].write(buffer, parts.files[i].second);
  if (local_.is_root()) {
    if (parts.json.files != sealed_) {
      parts.json.files = sealed_;
      parts.text = checkpoint::json_text(parts.json);
    }
    parts.text.resize(text_bytes_, ' ');
    std::memcpy(text_[at].data(), parts.text.data(), text_bytes_);
  }
  control_.mark(buffer, local_.rank(), ++number_);
}

void Commits::remove() {
  std::error_code nothing_more_to_do;
  if (are_kept() && local_.is_root()) fs::remove_all(folder_.parent_path(), nothing_more_to_do);
}

}  // namespace lockstep
