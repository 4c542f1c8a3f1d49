#include "apps/run.h"

#include <lockstep/base/error.h>
#include <lockstep/base/nearest.h>
#include <lockstep/base/text.h>
#include <lockstep/launch/agent.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/core.h>

#include <cstdio>
#include <map>
#include <memory>

namespace lockstep::apps {

namespace {

constexpr int usage_error = 2;

constexpr const char* about =
    "Starts PROGRAM with its arguments as N ranks on this machine and ends them together.\n"
    "Each rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK, ... as under torchrun. Lines are printed with the rank in\n"
    "front; standard input goes to rank 0. SIGINT, SIGTERM and SIGHUP are passed on; a second SIGINT kills. When a rank\n"
    "fails the others are ended, the first failure is shown with its last lines, and its exit code is returned (128 + the\n"
    "number for a signal; 127: PROGRAM was not found; 126: it cannot be executed; 2: a mistake in these options).";

class Help : public CLI::Formatter {
 public:
  Help() { column_width(26); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: lockstep run [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }
};

struct Words {
  launch::WorkerSpec spec;
  std::string grace = "30s", failure_grace = "5s";
};

Duration to_duration(const char* option, const std::string& text) {
  const auto duration = parse_duration(text);
  if (!duration || *duration < Duration::zero())
    throw BadInput(fmt::format("{}: expected a time such as 10, 2.5s or 1m, found '{}'", option, text));
  return *duration;
}

void declare(CLI::App& app, Words& words) {
  using launch::PrefixStyle, launch::StandardInput;
  static const std::map<std::string, PrefixStyle> prefixes{{"rank", PrefixStyle::rank}, {"none", PrefixStyle::none}};
  static const std::map<std::string, StandardInput> inputs{{"rank-0", StandardInput::rank_0}, {"none", StandardInput::none}};
  launch::WorkerSpec& spec = words.spec;
  app.formatter(std::make_shared<Help>());
  app.prefix_command();   // from the first word that is no option on, everything is the program's
  app.set_help_flag("-h,--help", "Print this and exit");
  app.add_option("-n,--ranks", spec.ranks, "Number of ranks")->type_name("N")->capture_default_str();
  app.add_option("--log-dir", spec.log_folder, "Also write each rank's output, unchanged, to DIR/rank-N.log")->type_name("DIR");
  app.add_option("--prefix", spec.prefix, "rank: '[rank 1] ' before each line; none: bytes as they are")
      ->type_name("STYLE")->transform(CLI::CheckedTransformer(prefixes).description(""))->default_str("rank");
  app.add_option("--stdin", spec.input, "rank-0: standard input goes to rank 0; none: to nobody")
      ->type_name("WHO")->transform(CLI::CheckedTransformer(inputs).description(""))->default_str("rank-0");
  app.add_option("--grace", words.grace, "From a signal that was passed on to SIGKILL")->type_name("TIME")->capture_default_str();
  app.add_option("--failure-grace", words.failure_grace, "From SIGTERM to SIGKILL for the ranks that survive a failure")
      ->type_name("TIME")->capture_default_str();
  app.add_option("--port", spec.store_port, "Port of the store on 127.0.0.1; 0: a free one")
      ->type_name("PORT")->capture_default_str();
}

std::vector<std::string_view> option_names(const CLI::App& app) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}

// The program's words are what CLI11 could not place; one that looks like an option is a mistake.
void take_program(const CLI::App& app, launch::WorkerSpec& spec) {
  std::vector<std::string> rest = app.remaining();
  if (!rest.empty() && rest.front().starts_with("-") && rest.front() != "--") {
    std::string name = rest.front().substr(0, rest.front().find('='));
    name.erase(0, name.find_first_not_of('-') == std::string::npos ? name.size() : name.find_first_not_of('-'));
    throw BadInput(unknown_name("option", name, option_names(app)));
  }
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  if (rest.empty()) throw BadInput("no program to run was named; see lockstep run --help");
  spec.program = rest.front();
  spec.arguments.assign(rest.begin() + 1, rest.end());
}

}  // namespace

int run_command(const std::vector<std::string>& words) {
  CLI::App app(about);
  Words parsed;
  declare(app, parsed);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));   // CLI11 takes them last first
    take_program(app, parsed.spec);
    parsed.spec.grace = to_duration("--grace", parsed.grace);
    parsed.spec.failure_grace = to_duration("--failure-grace", parsed.failure_grace);
    parsed.spec.forward_signals = true;
    return launch::Agent(parsed.spec).run().exit_code;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "lockstep run: {}\n", error.what());
    return usage_error;
  } catch (const BadInput& error) {
    fmt::print(stderr, "lockstep run: {}\n", error.what());
    return usage_error;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep run: {}\n", error.what());
    return 1;
  }
}

}  // namespace lockstep::apps
