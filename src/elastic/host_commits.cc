#include "elastic/host_commits.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "checkpoint/file_part.h"
#include "sys/topology.h"

#include <lockstep/comm/together.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr CallOptions hosts_call{.tag = "hosts of commits"};
constexpr CallOptions transfer_call{.tag = "transfer of a commit"};
constexpr const char* received = "000000000000.received";  // sorts before all other generations

// Returns the integers of each rank, in rank order.
template <std::size_t count>
std::vector<std::array<std::int64_t, count>> words_of_all(Group& group,
                                                          std::array<std::int64_t, count> own) {
  const auto words = static_cast<std::int64_t>(count);
  std::vector<std::array<std::int64_t, count>> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather(at::from_blob(all.data(), {group.size() * words}, at::kLong),
                  at::from_blob(own.data(), {words}, at::kLong), hosts_call)
      .wait();
  return all;
}

struct SentFile {
  std::string name;
  std::int64_t bytes = 0;
};

std::string text_of(const fs::path& folder) {
  std::string text;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file())
      text += formatted("{} {}\n", entry.file_size(), entry.path().filename().string());
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

// Throws CommonFailure if a file cannot be read, or rank 0 has no room.
fs::path transferred(Group& group, int holder, const fs::path& from, const fs::path& folder) {
  std::string text;
  together(group, [&] {
    if (group.rank() == holder) text = text_of(from);
  });
  const std::vector<SentFile> files = files_in(broadcast_text(group, std::move(text), holder));
  const fs::path to = folder / received;
  std::vector<SharedFile> mapped(files.size());
  together(group, [&] {
    if (group.is_root()) {
      if (folder.empty()) throw SystemError("keeping commits on the host of rank 0", ENOMEM);
      fs::remove_all(to);
      fs::create_directories(to);
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

}  // namespace

HostCommits host_commits(Group& group, const fs::path& of_run) {
  const std::string name = sys::host_of_rank();
  const std::uint64_t host = fingerprint(name);
  const std::array<std::int64_t, 2> own{static_cast<std::int64_t>(host), !of_run.empty()};
  const auto all = words_of_all(group, own);
  HostCommits found{.ranks = group, .folder = of_run / formatted("{:016x}", host)};
  int first = group.size();  // lowest rank of this host
  for (int rank = group.size() - 1; rank >= 0; --rank) {
    const auto& [its_host, has_folder] = all[static_cast<std::size_t>(rank)];
    if (its_host != own[0]) {
      found.has_others = true;
      continue;
    }
    first = rank;
    if (has_folder == 0) found.folder.clear();
  }
  if (found.has_others) found.ranks = group.split(first);
  return found;
}

fs::path newest_for_root(Group& group, const std::optional<FoundCommit>& own,
                         const fs::path& folder) {
  const CommitNumber number = own ? own->number : CommitNumber{};
  const auto all = words_of_all(
      group, std::array<std::int64_t, 3>{number.round, number.generation, number.number});
  const auto newest = std::ranges::max_element(all);
  if ((*newest)[0] < 0) return {};
  const int holder = static_cast<int>(newest - all.begin());
  std::string from;
  if (group.rank() == holder) from = (own->generation / buffer_name(own->buffer)).string();
  if (holder == 0) return broadcast_text(group, std::move(from));
  try {
    return transferred(group, holder, from, folder);
  } catch (const CommonFailure& failure) {
    if (group.is_root())
      log::warning(
          "elastic: the state in the memory of another host cannot be taken over: {}; the run goes "
          "back to its newest checkpoint",
          failure.what());
    return {};
  }
}

}  // namespace lockstep
