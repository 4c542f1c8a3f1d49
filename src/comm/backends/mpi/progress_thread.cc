#include "comm/backends/mpi/progress_thread.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "base/scope_exit.h"
#include "comm/backends/mpi/library.h"
#include "sys/own_process.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <sched.h>
#include <sys/prctl.h>

namespace lockstep::mpi {
namespace {

using namespace std::chrono_literals;

constexpr int header_tag = 0;
// The number of receives that are posted for headers, so that MPI need not buffer headers that
// arrive between two polls.
constexpr int envelopes = 16;
constexpr std::size_t piece_bytes = std::size_t{1} << 30;
// How often to check whether the peers' processes are alive.
constexpr auto look_every = 10ms;
// If MPI cannot reach a rank: how long to wait for the end of its process, which would explain the
// error, before the rank is lost.
constexpr auto end_of_process = 200ms;
// How long a process waits at its end for ranks that may never reach their end.
constexpr auto longest_parting = 3s;
constexpr std::string_view finalized = "the program has called MPI_Finalize()";

}  // namespace

ProgressThread& ProgressThread::open() {
  // One per process, like MPI itself, which is initialised and finalised once, and not in a forked
  // child.
  static const std::unique_ptr<ProgressThread, sys::DeleteUnlessCopy> progress(
      std::make_unique<ProgressThread>().release());
  check_input(!progress->has_ended_,
              "the backend mpi: {}, and MPI can be initialised only once in a process", finalized);
  return *progress;
}

ProgressThread::ProgressThread() {
  mpi_ = &open_library(chosen_library());
  std::promise<void> begun;
  thread_ = sys::Thread("mpi", [this, &begun] {
    try {
      begin();
    } catch (...) {
      return begun.set_exception(std::current_exception());
    }
    begun.set_value();
    run();
  });
  try {
    begun.get_future().get();
  } catch (...) {
    thread_.join();
    mpi_->forget();
    throw;
  }
}

void ProgressThread::begin() {
  sys::process_identity().copy(world_.root, sizeof(world_.root) - 1);
  world_.ending = [](void* self) { static_cast<ProgressThread*>(self)->end_before_mpi(); };
  world_.context = this;
  if (int code = mpi_->start(&world_); code != 0)
    throw BadInput(formatted("the backend mpi: MPI cannot be initialised: {}", explained(code)));
  watch(0, world_.root);  // it serves the store, in which the ranks find each other's processes
  next_tags_.assign(world_.size, 0);
  for (int number = 0; number < envelopes; ++number) {
    auto& envelope = envelopes_.emplace_back();
    envelope.memory.resize(envelope_bytes);
    check(mpi_->receive(envelope.memory.data(), envelope_bytes, -1, header_tag, &envelope.request),
          "MPI_Irecv");
  }
}

ProgressThread::~ProgressThread() {
  {
    Lock lock(mutex_);
    ending_ = true;
  }
  given_.notify_one();
  thread_.join();
  mpi_->forget();
}

void ProgressThread::end_before_mpi() {
  auto over = std::make_shared<std::promise<void>>();
  give([this, over] {
    const ScopeExit ended([&] {
      broken_ = finalized;
      has_ended_ = true;
      over->set_value();
    });
    end_groups(std::string(finalized));
    leave();
  });
  over->get_future().wait();
}

void ProgressThread::give(std::function<void()> task) {
  {
    Lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  given_.notify_one();
}

void ProgressThread::run() {
  ::prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; sleeps here are tens of microseconds
  int idle_rounds = 0;
  for (;;) {
    bool progress = run_tasks();
    try {
      if (broken_.empty()) {
        progress = take_headers() || progress;
        progress = take_finished() || progress;
      }
      check_processes();
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
    idle_rounds = progress ? 0 : idle_rounds + 1;
    Lock lock(mutex_);
    if (!tasks_.empty()) continue;
    if (ending_) break;
    lock.unlock();
    if (!progress) backoff(idle_rounds);
  }
  leave();
}

void ProgressThread::leave() {
  try {
    if (broken_.empty()) finalize();
  } catch (const std::exception& error) {
    log::warning("the backend mpi: MPI could not be finalised: {}", error.what());
  }
}

bool ProgressThread::run_tasks() {
  std::deque<std::function<void()>> tasks;
  {
    Lock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) {
    try {
      task();
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
  }
  return !tasks.empty();
}

// MPI fills the receives in the order in which they were posted, so only the first one needs a
// test.
bool ProgressThread::take_headers() {
  bool any = false;
  for (;;) {
    auto& first = envelopes_.front();
    int done = 0;
    Arrival arrival;
    check(mpi_->test(&first.request, &done, &arrival.from), "MPI_Test");
    if (done == 0) return any;
    any = true;
    std::memcpy(&arrival.header, first.memory.data(), sizeof(Header));
    if (arrival.header.tag == 0) {
      auto* content = first.memory.data() + sizeof(Header);
      auto bytes = std::min<std::size_t>(arrival.header.bytes, eager_limit);
      arrival.content.assign(content, content + bytes);
    }
    auto again = std::move(first);
    envelopes_.pop_front();
    check(mpi_->receive(again.memory.data(), envelope_bytes, -1, header_tag, &again.request),
          "MPI_Irecv");
    envelopes_.push_back(std::move(again));
    deliver(std::move(arrival));
  }
}

void ProgressThread::deliver(Arrival arrival) {
  // A rank that reports a failed group may still be stuck, so it stays suspected.
  if (arrival.header.kind != Kind::failed) suspected_.erase(arrival.from);
  if (arrival.header.kind == Kind::goodbye) {
    departed_.insert(arrival.from);
    return;
  }
  auto handler = handlers_.find(arrival.header.group);
  if (handler != handlers_.end()) {
    // Hold a reference: the handler may detach itself.
    auto kept = handler->second;
    return kept->arrived(std::move(arrival));
  }
  if (parting_ || detached_.contains(arrival.header.group)) return discard(arrival);
  early_[arrival.header.group].push_back(std::move(arrival));
}

bool ProgressThread::take_finished() {
  std::vector<Done> finished;
  for (auto moving = moving_.begin(); moving != moving_.end();) {
    if (!is_over(*moving)) {
      ++moving;
      continue;
    }
    if (moving->done) finished.push_back(std::move(moving->done));
    moving = moving_.erase(moving);
  }
  // After the loop, because the callbacks may begin new transfers.
  for (auto& done : finished) done();
  return !finished.empty();
}

bool ProgressThread::is_over(Moving& moving) {
  std::erase_if(moving.requests, [&](auto& request) {
    int done = 0;
    int from = 0;
    int code = mpi_->test(&request, &done, &from);
    if (code == 0) return done != 0;
    moving.done = nullptr;
    note_unreachable(moving.peer, code);
    return true;
  });
  return moving.requests.empty();
}

ProgressThread::Moving& ProgressThread::begin_moving(int peer) {
  auto& moving = moving_.emplace_back();
  moving.peer = peer;
  return moving;
}

template <class Start>
void ProgressThread::start_pieces(Moving& moving, std::size_t bytes, Start start) {
  for (std::size_t begin = 0; begin < bytes; begin += piece_bytes) {
    lockstep_mpi_request request{};
    if (int code = start(begin, std::min(piece_bytes, bytes - begin), &request); code != 0) {
      moving.done = nullptr;
      return note_unreachable(moving.peer, code);
    }
    moving.requests.push_back(request);
  }
}

void ProgressThread::send(int to, Header header, std::span<const std::byte> content,
                          std::shared_ptr<const void> keep, Done done) {
  if (!broken_.empty() || lost_.contains(to)) return;
  bool is_eager = content.size() <= eager_limit;
  header.bytes = content.size();
  if (!is_eager) {
    auto& tag = next_tags_[to];
    tag = tag % world_.greatest_tag + 1;
    header.tag = tag;
  }
  auto& envelope = begin_moving(to);
  envelope.memory.resize(sizeof(Header) + (is_eager ? content.size() : 0));
  std::memcpy(envelope.memory.data(), &header, sizeof(Header));
  if (is_eager && !content.empty())
    std::memcpy(envelope.memory.data() + sizeof(Header), content.data(), content.size());
  start_pieces(envelope, envelope.memory.size(), [&](auto, auto bytes, auto* fresh) {
    return mpi_->send(envelope.memory.data(), bytes, to, header_tag, fresh);
  });
  if (is_eager) {
    if (done) done();
    return;
  }
  auto& moving = begin_moving(to);
  moving.keep = std::move(keep);
  moving.done = std::move(done);
  start_pieces(moving, content.size(), [&](auto begin, auto bytes, auto* fresh) {
    return mpi_->send(content.data() + begin, bytes, to, header.tag, fresh);
  });
}

void ProgressThread::fetch(const Arrival& arrival, std::byte* to, std::shared_ptr<const void> keep,
                           Done done) {
  if (!broken_.empty()) return;
  if (arrival.header.tag == 0) {
    if (!arrival.content.empty()) std::memcpy(to, arrival.content.data(), arrival.content.size());
    if (done) done();
    return;
  }
  auto& moving = begin_moving(arrival.from);
  moving.keep = std::move(keep);
  moving.done = std::move(done);
  start_pieces(moving, arrival.header.bytes, [&](auto begin, auto bytes, auto* fresh) {
    return mpi_->receive(to + begin, bytes, arrival.from, arrival.header.tag, fresh);
  });
}

void ProgressThread::discard(const Arrival& arrival) {
  if (arrival.header.tag == 0) return;
  auto waste = std::make_shared<std::vector<std::byte>>(arrival.header.bytes);
  auto* memory = waste->data();
  fetch(arrival, memory, std::move(waste), nullptr);
}

void ProgressThread::attach(std::uint64_t group, std::shared_ptr<MessageHandler> handler) {
  auto early = early_.extract(group);
  handlers_.emplace(group, handler);
  if (!broken_.empty()) return handler->lost(-1, broken_);
  for (const auto& [rank, how] : lost_) handler->lost(rank, how);
  if (early.empty()) return;
  for (auto& arrival : early.mapped()) handler->arrived(std::move(arrival));
}

void ProgressThread::detach(std::uint64_t group) {
  constexpr std::size_t most_remembered = 65'536;
  handlers_.erase(group);
  if (!detached_.insert(group).second) return;
  order_of_ends_.push_back(group);
  if (order_of_ends_.size() <= most_remembered) return;
  detached_.erase(order_of_ends_.front());
  order_of_ends_.pop_front();
}

void ProgressThread::watch(int rank, std::string_view identity) {
  if (rank != world_.rank && !lost_.contains(rank)) processes_.watch(rank, identity);
}

void ProgressThread::check_processes() {
  auto now = Clock::now();
  if (now - last_look_ < look_every) return;
  last_look_ = now;
  const auto ended = processes_.ended();
  // A process that exits normally sends goodbye first, perhaps after headers were last taken.
  if (!ended.empty() && broken_.empty()) take_headers();
  for (int rank : ended) {
    const auto process = processes_.pid(rank);
    processes_.forget(rank);
    unreachable_.erase(rank);
    if (!departed_.contains(rank))
      note_lost(rank, formatted("its process {} ended without leaving", process));
  }
  auto troubles = unreachable_;
  for (const auto& [rank, trouble] : troubles) {
    if (processes_.watches(rank) && now - trouble.since < end_of_process) continue;
    unreachable_.erase(rank);
    note_lost(rank, trouble.what);
  }
}

void ProgressThread::note_unreachable(int rank, int code) {
  if (departed_.contains(rank) || lost_.contains(rank)) return;
  unreachable_.emplace(
      rank, Trouble{formatted("MPI cannot reach it: {}", explained(code)), Clock::now()});
}

void ProgressThread::note_lost(int rank, const std::string& how) {
  lost_.emplace(rank, how);
  auto handlers = handlers_;  // a copy: handlers may detach themselves
  for (auto& [group, handler] : handlers) handler->lost(rank, how);
}

// While messages are expected: polls continuously at first, then every 30 us, finally every 300 us.
// Polls continuously for longer while a transfer is running, because MPI moves a part of a large
// message with each call. If no messages are expected: polls every millisecond.
void ProgressThread::backoff(int idle_rounds) {
  bool expects = expected_ > 0 || !moving_.empty();
  int eager = moving_.empty() ? 100 : 2000;
  if (expects && idle_rounds < eager) {
    ::sched_yield();
    return;
  }
  auto pause = !expects ? 1000us : idle_rounds < 4 * eager ? 30us : 300us;
  Lock lock(mutex_);
  given_.wait_for(lock.native(), pause,
                  [this]() LOCKSTEP_REQUIRES(mutex_) { return !tasks_.empty() || ending_; });
}

void ProgressThread::fail_all(const std::string& why) {
  broken_ = why;
  end_groups(why);
}

void ProgressThread::end_groups(const std::string& why) {
  auto handlers = handlers_;
  for (auto& [group, handler] : handlers) handler->lost(-1, why);
}

bool ProgressThread::is_everyone_leaving() const {
  return static_cast<int>(departed_.size()) == world_.size - 1 && moving_.empty();
}

void ProgressThread::finalize() {
  parting_ = true;
  for (const auto& [group, arrivals] : early_) {
    for (const auto& arrival : arrivals) discard(arrival);
  }
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank != world_.rank) send(rank, {.kind = Kind::goodbye}, {}, nullptr, nullptr);
  }
  auto begin = Clock::now();
  while (!is_everyone_leaving()) {
    bool progress = take_headers();
    progress = take_finished() || progress;
    check_processes();
    // MPI_Finalize would wait forever.
    if (!lost_.empty() || (!suspected_.empty() && Clock::now() - begin > longest_parting)) return;
    if (!progress) std::this_thread::sleep_for(Clock::now() - begin < 100ms ? 50us : 2000us);
  }
  for (auto& envelope : envelopes_) check(mpi_->cancel(&envelope.request), "MPI_Cancel");
  check(mpi_->stop(), "MPI_Finalize");
}

void ProgressThread::check(int code, const char* what) const {
  if (code != 0) throw Aborted(formatted("{} failed: {}", what, explained(code)));
}

std::string ProgressThread::explained(int code) const {
  char text[512];
  mpi_->describe(code, text, sizeof(text));
  std::string line = text;  // MPICH's text is a list
  std::ranges::replace(line, '\n', ' ');
  return line;
}

}  // namespace lockstep::mpi
