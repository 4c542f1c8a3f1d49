// The counterpart of bench/peers/optimizer.py. The answer to "update N" is the seconds of N steps
// of AdamW; the answer to "memory N" is the seconds of N passes over the same memory.
#include "base/check.h"
#include "serve.h"

#include "measure/optimizer.h"
#include "sys/program.h"

#include <ATen/Parallel.h>

#include <iostream>

namespace lockstep::bench {

int serve_optimizer(const Words& words) {
  OptimizerSizes sizes;
  std::string state = "float32";
  int threads = 1;
  CommandOptions options("lockstep-bench-rank optimizer", "", "");
  options.add({"tensors", "N", ""}, number_into(sizes.tensors, 1, 100'000));
  options.add({"elements", "N", ""}, number_into(sizes.elements, 1, 1 << 30));
  options.add({"state", "WORD", ""}, word_into(state, state_names()));
  options.add({"threads", "N", ""}, number_into(threads, 1, 1024));
  if (auto code = sys::answer(options.read(words), options)) return *code;
  at::set_num_threads(threads);
  OptimizerWork work(sizes, state);
  serve(std::cin, std::cout, {{"ready", true}}, [&](const std::string& line) {
    auto blank = line.find(' ');
    std::string what = line.substr(0, blank);
    check_input(blank != std::string::npos && (what == "update" || what == "memory"),
                "expected a line such as 'update 3', found '{}'", line);
    return seconds_of_steps(line.substr(blank + 1),
                            [&] { return what == "update" ? work.update() : work.memory(); });
  });
  return 0;
}

}  // namespace lockstep::bench
