// Tests on the simulated accelerator.
//
//   class Trains : public AcceleratorTest {};
//   TEST_F(Trains, OnTwoDevices) {                  // fails if any fault is reported
//     run_ranks(2, [](Group group, c10::Device device) { ... });
//   }
#pragma once

#include <lockstep/comm/group.h>

#include "support/accelerator/c10d_backend.h"
#include "support/accelerator/device.h"
#include "support/accelerator/machine.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

// Fails if a fault was reported that the test did not consume with expect_fault().
class AcceleratorTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
};

// Consumes all reports; fails if there is one of another kind than `allowed`.
void expect_no_faults_but(std::optional<Fault> allowed);
inline void expect_no_faults() { expect_no_faults_but(std::nullopt); }
// Consumes all reports; fails unless one of them is of this kind and contains both texts.
void expect_fault(Fault fault, const std::string& text = {}, const std::string& other = {});
// Fails if the host waits for its devices more than `most` times while `body` runs.
void expect_synchronizations_at_most(int most, int host, const std::function<void()>& body);

// Runs body in `size` ranks, which are threads. Rank r is host r, and device r is its current
// device. An exception of a rank fails the test.
using RankBody = std::function<void(Group group, c10::Device device)>;
void run_ranks(int size, const RankBody& body, Omission omission = Omission::none);
// Like run_ranks(), but returns the errors of the ranks.
[[nodiscard]] std::vector<std::string> errors_of_ranks(int size, const RankBody& body,
                                                       Omission omission = Omission::none);

// Runs the program once per wait of the host's streams, with that wait left out. `is_right()` runs
// the program and returns true if its numbers are right. Fails if numbers are wrong without a
// report, or if no wait is needed. Returns the number of omissions that were reported. Leaves out
// as many waits as 2 s allow, in a random order that LOCKSTEP_WAITS_SEED repeats; all of them if
// LOCKSTEP_WAITS is "all". Records the numbers as properties of the test.
int expect_dropped_waits_found(int host, const std::function<bool()>& is_right);

}  // namespace lockstep::test::accelerator
