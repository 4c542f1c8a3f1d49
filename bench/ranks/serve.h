// The protocol between the rank programs of bench/ and bench/contenders.py: a program prints one
// line of JSON when it is ready, and answers every input line with one line, until its input ends.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace lockstep::bench {

// Returns the answer to a request. Throws BadInput for an invalid line.
using Answer = std::function<nlohmann::json(const std::string& line)>;

void serve(std::istream& in, std::ostream& out, const nlohmann::json& ready, const Answer& answer);

// Parses a number of steps. Throws BadInput for another line.
[[nodiscard]] std::size_t steps_of(const std::string& line);

// Runs the number of steps in `line` and returns `{"seconds": [...]}`.
[[nodiscard]] nlohmann::json seconds_of_steps(const std::string& line,
                                              const std::function<double()>& step);

// Programs, selected by the first word of the command line; each parses its own options.
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
