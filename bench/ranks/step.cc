// The counterpart of bench/peers/step.py. The answer to a number of steps is their seconds, the
// first losses, and the bytes that this rank holds.
#include "serve.h"

#include "matmul/matmul.h"
#include "measure/step.h"
#include "sys/program.h"

#include <lockstep/comm/init.h>

#include <ATen/Parallel.h>

#include <iostream>

namespace lockstep::bench {

int serve_steps(const Words& words) {
  StepWorkOptions told;
  int threads = 1;
  CommandOptions options("lockstep-bench-rank step", "", "");
  options.add({"model", "WORD", ""}, word_into(told.model, model_names()));
  options.add({"width", "N", ""}, number_into(told.size.width, 1, 1 << 20));
  options.add({"depth", "N", ""}, number_into(told.size.depth, 1, 1 << 20));
  options.add({"mode", "WORD", ""}, word_into(told.mode, step_modes()));
  options.add({"fused", "", ""}, flag_into(told.fused));
  options.add({"threads", "N", ""}, number_into(threads, 1, 1024));
  if (auto code = sys::answer(options.read(words), options)) return *code;
  Group world = init();
  at::set_num_threads(threads);
  StepWork work(told, world);
  serve(std::cin, std::cout,
        {{"ready", true}, {"fused", work.training().is_fused()}, {"products", matmul::library()}},
        [&](const std::string& line) {
          auto found = seconds_of_steps(line, [&] { return work.step(); });
          found["losses"] = work.losses();
          found["bytes"] = work.training().held_bytes();
          return found;
        });
  return 0;
}

}  // namespace lockstep::bench
