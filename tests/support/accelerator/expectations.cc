#include "support/accelerator/expectations.h"

#include <lockstep/store/memory_store.h>

#include "comm/init/backends.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::test::accelerator {
namespace {

void finish_all_devices() {
  for (int i = 0; i < device_count; ++i) Machine::get().synchronize_device(i, "end of the program");
}

constexpr auto time_for_waits = std::chrono::seconds(2);  // of one program

bool tries_all_waits() {
  const char* wanted = std::getenv("LOCKSTEP_WAITS");
  return wanted != nullptr && std::string_view(wanted) == "all";
}

// Each run leaves out other waits first. The seed is printed, and LOCKSTEP_WAITS_SEED repeats it.
unsigned seed_of_waits() {
  const char* wanted = std::getenv("LOCKSTEP_WAITS_SEED");
  const auto seed = wanted == nullptr
                        ? std::random_device()()
                        : static_cast<unsigned>(std::strtoul(wanted, nullptr, /*base=*/10));
  std::printf("waits are left out in an order that LOCKSTEP_WAITS_SEED=%u repeats\n", seed);
  std::fflush(stdout);  // the test may crash
  return seed;
}

// Returns the numbers from 1 to `count` in a random order.
std::vector<int> shuffled(int count, unsigned seed) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 1);
  std::ranges::shuffle(numbers, std::mt19937(seed));
  return numbers;
}

}  // namespace

void AcceleratorTest::SetUp() {
  (void)device(0);
  Machine::get().set({});
  (void)Machine::get().take_reports();
}

void AcceleratorTest::TearDown() {
  finish_all_devices();
  expect_no_faults();
  Machine::get().set({});
}

void expect_no_faults_but(std::optional<Fault> allowed) {
  constexpr std::size_t most = 10;
  auto reports = Machine::get().take_reports();
  std::erase_if(reports, [&](const Report& report) {
    return report.fault == allowed && !report.text.starts_with("call ");  // calls that differ
  });
  for (std::size_t i = 0; i < std::min(most, reports.size()); ++i) ADD_FAILURE() << reports[i];
  if (reports.size() > most) ADD_FAILURE() << "and " << reports.size() - most << " more";
}

void expect_fault(Fault fault, const std::string& text, const std::string& other) {
  const auto reports = Machine::get().take_reports();
  const bool found = std::ranges::any_of(reports, [&](const Report& report) {
    return report.fault == fault && report.text.find(text) != std::string::npos &&
           report.text.find(other) != std::string::npos;
  });
  EXPECT_TRUE(found) << "no such report with '" << text << "' and '" << other << "' among "
                     << reports.size();
  if (found) return;
  for (const Report& report : reports) ADD_FAILURE() << report;
}

void expect_synchronizations_at_most(int most, int host, const std::function<void()>& body) {
  Machine::get().reset_counts();
  body();
  const auto counts = Machine::get().counts(host);
  EXPECT_LE(counts.all_synchronizations(), most);
  if (counts.all_synchronizations() <= most) return;
  for (const auto& [cause, times] : counts.synchronizations)
    ADD_FAILURE() << times << " times " << cause;
}

void run_ranks(int size, const RankBody& body, Omission omission) {
  for (const std::string& error : errors_of_ranks(size, body, omission)) ADD_FAILURE() << error;
}

std::vector<std::string> errors_of_ranks(int size, const RankBody& body, Omission omission) {
  using std::chrono::seconds;
  auto& machine = Machine::get();
  const auto store = std::make_shared<MemoryStore>();
  std::mutex mutex;
  std::vector<std::string> errors;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    machine.set_host(rank, rank);
    threads.emplace_back([&, rank] {
      const auto own = device(rank);
      const c10::DeviceGuard guard(own);
      std::vector<c10::intrusive_ptr<c10d::Backend>> made;
      const auto make = [&made, inner = make_backends(own, omission)](const auto&... arguments) {
        made.push_back(inner(arguments...));
        return made.back();
      };
      const BackendOptions options{
          .join_timeout = seconds(20), .c10d = make, .c10d_streams = true, .device = own};
      try {
        body(Group(make_backend("sim", store, rank, size, options), "world", seconds(20)), own);
      } catch (const std::exception& error) {
        // As if its process had ended: the other ranks do not wait for it until their deadline.
        for (const auto& backend : made) backend->abort();
        const std::lock_guard lock(mutex);
        errors.push_back("rank " + std::to_string(rank) + ": " + error.what());
      }
    });
  }
  threads.clear();
  for (int rank = 0; rank < size; ++rank) machine.set_host(rank, 0);
  return errors;
}

int expect_dropped_waits_found(int host, const std::function<bool()>& is_right) {
  auto& machine = Machine::get();
  machine.set({});
  EXPECT_TRUE(is_right());
  expect_no_faults();
  const int waits = machine.counts(host).waits;
  const auto end = std::chrono::steady_clock::now() + time_for_waits;
  int tried = 0, found = 0;
  for (const int number : shuffled(waits, seed_of_waits())) {
    if (!tries_all_waits() && std::chrono::steady_clock::now() > end) break;
    machine.set(
        {.seed = static_cast<std::uint64_t>(number), .drop_host = host, .drop_wait = number});
    const bool right = is_right();
    const bool is_reported = !machine.take_reports().empty();
    ++tried;
    found += is_reported ? 1 : 0;
    EXPECT_TRUE(right || is_reported) << "wait " << number << " of " << waits << " was left out";
    finish_all_devices();  // what a rank that failed has launched
    (void)machine.take_reports();
  }
  machine.set({});
  if (tried == waits) EXPECT_GT(found, 0) << "none of " << tried << " waits is needed";
  for (const auto& [name, count] :
       {std::pair("waits", waits), {"left_out", tried}, {"found", found}})
    testing::Test::RecordProperty(name, count);
  return found;
}

}  // namespace lockstep::test::accelerator
