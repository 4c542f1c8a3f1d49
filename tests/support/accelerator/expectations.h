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
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

// Fails if a fault is reported that the test has not taken by expect_fault().
class AcceleratorTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
};

// Takes all reports and fails if there is one of another kind.
void expect_no_faults_but(std::optional<Fault> allowed);
inline void expect_no_faults() { expect_no_faults_but(std::nullopt); }
// Takes all reports. Fails unless one of them is of this kind and has both texts.
void expect_fault(Fault fault, const std::string& text = {}, const std::string& other = {});
// Fails if a host waited for its devices more often while `body` ran.
void expect_synchronizations_at_most(int most, int host, const std::function<void()>& body);

// Runs body in `size` ranks, which are threads. Rank r has device r, which is its current device,
// and is host r. An exception of a rank fails the test.
using RankBody = std::function<void(Group group, c10::Device device)>;
void run_ranks(int size, const RankBody& body, Omission omission = Omission::none);
// The same, for programs that may fail: returns the errors.
[[nodiscard]] std::vector<std::string> errors_of_ranks(int size, const RankBody& body,
                                                       Omission omission = Omission::none);

// Leaves out each wait of a host's streams in turn. `is_right()` runs the program and says whether
// its numbers are right. Fails if a wait was left out that made them wrong without a report, or if
// no wait is needed. Returns how many were reported. If there are more than `most` waits, leaves
// out that many of them, which a seed draws.
int expect_dropped_waits_found(int host, const std::function<bool()>& is_right,
                               int most = std::numeric_limits<int>::max());

}  // namespace lockstep::test::accelerator
