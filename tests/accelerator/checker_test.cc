// The checker against an oracle: random programs of operations, events, waits and synchronisations
// on streams of two devices. A program has a conflict if two operations use one tensor, one of them
// writes it, and no path of the graph of launches leads from the earlier to the later.
#include "support/accelerator/expectations.h"

#include <ATen/ops/full.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <deque>
#include <random>
#include <set>
#include <vector>

using namespace lockstep::test::accelerator;

namespace {

constexpr int tensors = 4;
constexpr int streams = 4;
constexpr int programs = 1500;

struct Launched {
  std::set<int> earlier;  // all launches that happen before
  int written = 0;        // a tensor, which is also read
  int read = 0;

  [[nodiscard]] bool conflicts_with(const Launched& other) const {
    return written == other.written || written == other.read || read == other.written;
  }
};

struct Recorded {
  c10::Event event{c10::DeviceType::PrivateUse1};
  std::set<int> earlier;
};

class Program {
 public:
  explicit Program(std::uint64_t seed) : random_(seed) {
    Machine::get().set({.seed = seed, .lazy = pick(2) == 0});
    for (int i = 0; i < streams; ++i)
      streams_.push_back(i == 0 ? current_stream(device(0)) : new_stream(device(i == 3 ? 1 : 0)));
    for (int i = 0; i < tensors; ++i) {
      tensors_.push_back(at::full({64}, i + 1.0, device(0)));
      expected_.push_back(i + 1.0);
    }
    streams_[0].synchronize();
    (void)Machine::get().take_reports();
    const int steps = 6 + pick(14);
    const int kinds = 6 + pick(8);
    for (int i = 0; i < steps; ++i) step(pick(streams), pick(kinds));
  }

  [[nodiscard]] bool has_conflict() const {
    for (std::size_t later = 0; later < launched_.size(); ++later)
      for (std::size_t i = 0; i < later; ++i)
        if (launched_[later].conflicts_with(launched_[i]) &&
            !launched_[later].earlier.contains(static_cast<int>(i)))
          return true;
    return false;
  }

  [[nodiscard]] bool has_expected_values() const {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
    guard.synchronizeDevice(0);
    for (int i = 0; i < tensors; ++i)
      if (std::abs(tensors_[i][0].item<double>() - expected_[i]) > 1e-4) return false;
    return true;
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }

  void step(int stream, int kind) {
    if (kind < 4 && stream < 3) return launch(stream, pick(tensors), pick(tensors));
    if (kind == 4) {
      recorded_.emplace_back();
      recorded_.back().event.record(streams_[stream]);
      recorded_.back().earlier = end_of(stream);
    }
    if (kind != 5 || recorded_.empty()) return;
    auto& recorded = recorded_[pick(static_cast<int>(recorded_.size()))];
    if (pick(8) == 0) {
      recorded.event.synchronize();
      host_.insert(recorded.earlier.begin(), recorded.earlier.end());
    } else {
      recorded.event.block(streams_[stream]);
      ends_[stream].insert(recorded.earlier.begin(), recorded.earlier.end());
    }
  }

  void launch(int stream, int written, int read) {
    const c10::StreamGuard on(streams_[stream]);
    tensors_[written].mul_(0.5).add_(tensors_[read]);
    const double half = expected_[written] * 0.5;
    expected_[written] = half + (written == read ? half : expected_[read]);
    launched_.push_back({end_of(stream), written, read});
    ends_[stream] = end_of(stream);
    ends_[stream].insert(static_cast<int>(launched_.size()) - 1);
  }

  [[nodiscard]] std::set<int> end_of(int stream) const {
    auto all = ends_[stream];
    all.insert(host_.begin(), host_.end());
    return all;
  }

  std::mt19937_64 random_;
  std::vector<c10::Stream> streams_;
  std::vector<at::Tensor> tensors_;
  std::vector<double> expected_;
  std::vector<Launched> launched_;
  std::set<int> ends_[streams];  // what the next launch of each stream comes after
  std::set<int> host_;
  std::deque<Recorded> recorded_;
};

class Checker : public AcceleratorTest {};

TEST_F(Checker, AgreesWithReachabilityInTheGraphOfLaunches) {
  int conflicts = 0;
  for (int seed = 0; seed < programs; ++seed) {
    const Program program(seed);
    const bool has_values = program.has_expected_values();
    const bool is_reported = !Machine::get().take_reports().empty();
    EXPECT_EQ(is_reported, program.has_conflict()) << "seed " << seed;
    EXPECT_TRUE(has_values || is_reported) << "seed " << seed;
    conflicts += is_reported ? 1 : 0;
  }
  EXPECT_GT(conflicts, programs / 4);
  EXPECT_LT(conflicts, programs);
}

}  // namespace
