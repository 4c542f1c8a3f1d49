// Runs `lockstep-measure COMMAND --json`.
#pragma once

#include "apps/bench_output.h"

namespace lockstep::test {

class MeasureTest : public BenchTest {
 protected:
  MeasureTest() : BenchTest(program("../bench/lockstep-measure")) {}
};

}  // namespace lockstep::test
