#include "rank_env/rank_ends.h"

#include "base/environment.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "rank_env/variables.h"
#include "sys/file_descriptor.h"
#include "sys/files.h"
#include "sys/process.h"

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <limits>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace lockstep::rank_env {
namespace {

constexpr std::chrono::seconds store_timeout{5};
constexpr std::chrono::seconds end_timeout{1};

std::string keys_of_ends(std::string_view attempt) {
  return formatted("lockstep-run/ended/{}/", attempt);
}

}  // namespace

struct RankEnds::Writer {
  std::string address, secret;
  std::shared_ptr<Store> store = {};

  void write(const std::string& key, const std::string& how) {
    try {
      if (!store) store = open_store(address, secret, store_timeout);
      store->set(key, how);
    } catch (const std::exception& error) {
      log::debug("a rank's end could not be published: {}", error.what());
    }
  }
};

RankEnds::RankEnds(std::string address, std::string secret)
    : writer_(std::make_shared<Writer>(Writer{std::move(address), std::move(secret)})) {}

RankEnds::~RankEnds() { static_cast<void>(queue_.end(end_timeout)); }

void RankEnds::tell(std::string_view attempt, int rank, std::string_view how) {
  queue_.push([writer = writer_, key = formatted("{}{}", keys_of_ends(attempt), rank),
               how = std::string(how)] { writer->write(key, how); });
}

void check_rank_ends(Store& store, std::string_view attempt, int self) {
  const std::string begin = keys_of_ends(attempt);
  for (const std::string& key : store.keys(begin)) {
    const auto rank = parse_integer(std::string_view(key).substr(begin.size()));
    const auto how = store.try_get(key);
    if (!rank || !how || *rank == self) continue;
    throw PeerLost(formatted("rank {} ended ({}) before all ranks had met in init()", *rank, *how));
  }
}

namespace {

constexpr int milliseconds_for_the_line = 100;

// Must not block on a reader of standard error that ended together with the agent.
void wait_and_end(int agent, const std::string& line) {
  pollfd end{agent, POLLIN, 0};
  sys::wait_for_events({&end, 1});
  if (!sys::is_pidfd(agent)) return;  // the program has closed it, and may have opened another file
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, milliseconds_for_the_line) > 0 && (room.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  ::kill(::getpid(), SIGKILL);
}

}  // namespace

void watch_agent() {
  const auto agent =
      environment::integer(variable::agent_descriptor, 0, std::numeric_limits<int>::max());
  if (!agent || !sys::is_pidfd(static_cast<int>(*agent))) return;  // a wrapper has closed it
  static std::mutex mutex;
  static pid_t process = 0;  // the process that runs the thread; a forked child has no such thread
  const std::lock_guard lock(mutex);
  if (process == ::getpid()) return;
  ::fcntl(static_cast<int>(*agent), F_SETFD, FD_CLOEXEC);
  const std::string line =
      formatted("lockstep: rank {}: its agent (`lockstep run`) is gone; the rank ends\n",
                environment::text(variable::rank).value_or("?"));
  sys::Thread("agent watch", [agent = static_cast<int>(*agent), line] {
    wait_and_end(agent, line);
  }).detach();
  process = ::getpid();
}

void record_own_failure(std::string_view text) noexcept {
  using nlohmann::json;
  try {
    const auto file = environment::text(variable::error_file);
    if (!file) return;
    const json error{
        {"message",
         {{"message", text},
          {"extraInfo",
           {{"py_callstack", text}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
    sys::AtomicFile::write_for_now(*file,
                                   error.dump(-1, ' ', false, json::error_handler_t::replace));
  } catch (const std::exception& problem) {
    log::debug("this rank's error file could not be written: {}", problem.what());
  }
}

}  // namespace lockstep::rank_env
