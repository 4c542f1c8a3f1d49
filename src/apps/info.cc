#include "apps/commands.h"

#include "apps/facts.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/program.h"

#include <algorithm>
#include <cstdio>

namespace lockstep::apps {

namespace {

std::string list(const Facts& values) {
  std::vector<std::string> words;
  for (const Facts& value : values) words.push_back(value.get<std::string>());
  return words.empty() ? "none" : join(words);
}

std::string for_people(const std::string& name, const Facts& value) {
  if (value.is_null()) return name.starts_with("libtorch") ? "none" : "unknown";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_array()) return list(value);
  if (name.ends_with("_bytes")) return format_bytes(value.get<std::int64_t>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print(const char* title, const Facts& facts) {
  print_to(stdout, "{}\n", title);
  for (const auto& [name, value] : facts.items()) {
    std::string label = name.ends_with("_bytes") ? name.substr(0, name.size() - 6) : name;
    std::replace(label.begin(), label.end(), '_', ' ');
    print_to(stdout, "  {:<18} {}\n", label, for_people(name, value));
  }
}

}  // namespace

int info_command(const std::vector<std::string>& words) {
  return sys::run_program("lockstep info", [&] {
    CommandOptions options("lockstep info", "[--json]",
                           "What this build has and what this machine offers.");
    bool json = false;
    options.add({"json", "", "print it as one JSON object"}, flag_into(json));
    const auto request = options.read(words);
    if (const auto code = sys::answer(request, options)) return *code;
    if (json) {
      print_to(stdout, "{}\n",
               Facts{{"build", build_facts()}, {"machine", machine_facts()}}.dump(2));
    } else {
      print("This build", build_facts());
      print("This machine", machine_facts());
    }
    return 0;
  });
}

}  // namespace lockstep::apps
