// How the rank programs of bench/ speak with bench/contenders.py: each says one line of JSON when
// it is ready, and answers every line that it reads by one line, until its input ends.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace lockstep::bench {

// BadInput for a line that is none.
using Answer = std::function<nlohmann::json(const std::string& line)>;

void serve(std::istream& in, std::ostream& out, const nlohmann::json& ready, const Answer& answer);

// A line that is a number of steps, or BadInput.
[[nodiscard]] std::size_t steps_of(const std::string& line);

// `{"seconds": [...]}` of so many steps.
[[nodiscard]] nlohmann::json seconds_of_steps(const std::string& line,
                                              const std::function<double()>& step);

// The programs, by the first word of the command line; each reads its own options.
using Words = std::vector<std::string>;
int serve_collectives(const Words& words);
int serve_steps(const Words& words);
int serve_tails(const Words& words);
int serve_pipelines(const Words& words);
int serve_trigger(const Words& words);
int serve_optimizer(const Words& words);
int be_launched(const Words& words);
int serve_checkpoints(const Words& words);

}  // namespace lockstep::bench
