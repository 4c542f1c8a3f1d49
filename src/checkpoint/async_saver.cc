#include <lockstep/checkpoint/async_saver.h>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/log.h"
#include "checkpoint/content.h"
#include "sys/failure_text.h"
#include "sys/heap.h"
#include "sys/own_process.h"
#include "sys/thread.h"

#include <lockstep/comm/device.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {

namespace fs = std::filesystem;

namespace {

// Throws CollectiveFailure unless `of` has the same ranks as the saver's group: the same name on
// all ranks of the saver's group, and the same size.
void check_same_ranks(Group& group, const Group& of) {
  const auto own = static_cast<std::int64_t>(fingerprint(of.name()));
  const std::vector<std::int64_t> all = numbers_of_all(group, {own}, part_call);
  run_on_all_or_fail(group, [&] {
    check(of.size() == group.size() && of.rank() == group.rank() &&
              std::ranges::count(all, own) == group.size(),
          "AsyncSaver: expected a handle of the group that it was made for, rank {} of {}, found "
          "rank {} of {} in {}",
          group.rank(), group.size(), of.rank(), of.size(), of.name());
  });
}

}  // namespace

// Invariant: while `writing`, the thread alone uses `content`, `snapshot` and `error`.
struct AsyncSaver::State {
  // In host memory: kernels of this group and of the training's groups would wait for each other on
  // the GPU, in an order that ranks do not share.
  explicit State(const Group& of) : group(host_memory_group(of)) {}

  // Replaces the copy's memory if it is too small. Frees the old memory first, so that the two
  // never exist together.
  void make_room(std::size_t wanted) {
    if (wanted <= room) return;
    snapshot.reset();
    room = 0;
    snapshot = sys::private_pages(wanted, sys::PageSize::huge);
    room = wanted;
  }

  void write(const fs::path& out) noexcept {
    try {
      (void)write_content(group, out, *content);
    } catch (...) {
      error = std::current_exception();
    }
    content.reset();
    writing.store(false, std::memory_order_release);
  }

  // Collective. Starts the writing thread; it begins to write when all ranks have started theirs.
  // If a rank cannot start its thread, throws CollectiveFailure.
  void start(const fs::path& out) {
    std::promise<bool> all;
    try {
      run_on_all_or_fail(group, [&] {
        thread = sys::Thread("checkpoint", [this, out, go = all.get_future().share()] {
          if (go.get()) write(out);
        });
      });
    } catch (...) {
      all.set_value(false);
      if (thread.joinable()) thread.join();
      content.reset();
      throw;
    }
    writing = true;
    all.set_value(true);
  }

  // Waits for the writing thread and returns the error of the last save, once; null if it
  // succeeded.
  std::exception_ptr finished() {
    if (thread.joinable()) thread.join();
    return std::exchange(error, nullptr);
  }

  const sys::ForkAware process;
  Group group;
  std::shared_ptr<void> snapshot;
  std::size_t room = 0, used = 0;
  std::optional<Content> content;
  std::exception_ptr error;
  std::atomic<bool> writing{false};
  sys::Thread thread;
};

AsyncSaver::AsyncSaver(const Group& group) : state_(sys::make_shared_of_process<State>(group)) {}

AsyncSaver::~AsyncSaver() {
  try {
    wait();
  } catch (const std::exception& failure) {
    log::warning("checkpoint: {}", sys::failure_text(failure));
  } catch (...) {
    log::warning("checkpoint: writing failed");
  }
}

fs::path AsyncSaver::save(const fs::path& out, const Handle& handle,
                          const torch::optim::Optimizer& optimizer, const TrainingState& state,
                          const SaveOptions& options) {
  wait();
  Group& group = state_->group;
  check_same_ranks(group, handle.group());
  Content content = content_of(group, handle, optimizer, state, options);
  check_place(group, out, content);
  run_on_all_or_fail(group, [&] {
    state_->used = content.snapshot_bytes();
    state_->make_room(state_->used);
    content.take_snapshot({static_cast<std::byte*>(state_->snapshot.get()), state_->used});
  });
  fs::path folder = out / content.name;
  state_->content.emplace(std::move(content));
  state_->start(out);
  return folder;
}

void AsyncSaver::wait() {
  if (state_->process.is_copy_of_parent()) return;
  if (std::exception_ptr error = state_->finished()) std::rethrow_exception(error);
}

bool AsyncSaver::is_writing() const { return state_->writing.load(std::memory_order_acquire); }

std::size_t AsyncSaver::snapshot_bytes() const { return state_->used; }

}  // namespace lockstep::checkpoint
