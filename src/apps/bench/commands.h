// Programs that measure: `NAME COMMAND [OPTIONS]`, with one command per measurement. Used by
// lockstep-bench and by bench/measure.
#pragma once

#include "base/format.h"
#include "base/text.h"
#include "sys/program.h"
#include "train/program.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::apps {

using Words = std::vector<std::string>;

inline constexpr std::int64_t most_turns = 100'000;

template <std::integral Number>
void add_number(CommandOptions& options, const char* name, const char* help, Number& target,
                std::int64_t least, std::int64_t most) {
  options.add({name, "N", help, std::to_string(target)}, number_into(target, least, most));
}

inline void add_ranks(CommandOptions& options, std::int64_t& ranks) {
  options.add({"ranks", "N", "ranks on this machine", "as the launcher says, else 2", 'n'},
              number_into(ranks, 1, 1024));
}

inline void add_output(CommandOptions& options, bool& json) {
  options.add({"json", "", "one JSON object per row instead of a table"}, flag_into(json));
}

// Runs `body` on every rank: on the ranks of the launcher that started this process, or else on
// copies of this process. `device` as InitOptions::device.
template <typename Chosen, typename Body>
int on_ranks(const std::string& program, const std::string& name, const Words& words,
             const Chosen& chosen, Body body, const std::string& device = "cpu") {
  Words own = words;
  own.insert(own.begin(), name);
  return train::run_ranks({.command = program + " " + name,
                           .words = std::move(own),
                           .ranks = chosen.ranks,
                           .usual_ranks = 2,
                           .device = device,
                           .body = [&](const Group& world) {
                             body(world);
                             return 0;
                           }});
}

struct Command {
  std::string_view name;
  const char* about;
  std::function<int(const Words&)> run;
};

// Makes a command of `program` that parses its words with declare(options, chosen) and then calls
// act(words, chosen), unless the words only ask for help.
template <typename Chosen>
Command command(const std::string& program, std::string_view name, const char* about,
                void (*declare)(CommandOptions&, Chosen&),
                int (*act)(const Words&, const Chosen&)) {
  return {name, about, [program, name, about, declare, act](const Words& words) {
            Chosen chosen;
            CommandOptions options(formatted("{} {}", program, name), "[OPTIONS]", about);
            declare(options, chosen);
            if (auto code = sys::answer(options.read(words), options)) return *code;
            return act(words, chosen);
          }};
}

// Runs the command that the first word names.
inline int run_measurement(const std::string& program, std::string about,
                           const std::vector<Command>& commands, const Words& words) {
  about += "\n\n";
  std::vector<std::string_view> known;
  for (const Command& command : commands) {
    known.push_back(command.name);
    about += formatted("  {:<13}{}\n", command.name, command.about);
  }
  CommandOptions options(program, "COMMAND [OPTIONS]", about,
                         CommandOptions::Words::begin_a_program);
  if (auto code = sys::answer(options.read(words), options)) return *code;
  if (options.words().empty()) throw UsageError("name a command: " + listed(known, ", "));
  const std::string& name = options.words().front();
  auto found = std::ranges::find(commands, name, &Command::name);
  if (found == commands.end()) throw UsageError(unknown_name("command", name, known));
  return sys::run_program(formatted("{} {}", program, name), [&] {
    return found->run({options.words().begin() + 1, options.words().end()});
  });
}

}  // namespace lockstep::apps
