#include "train/model_description.h"

#include "base/check.h"
#include "base/format.h"

#include <lockstep/data/vocabulary.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::train {
namespace {

constexpr std::array<std::string_view, 5> shaping_options{"layers", "heads", "width", "block",
                                                          "dropout"};

bool is_described(const OptionRow& row, const std::string& task) {
  if (!row.is_for(task)) return false;
  if (row.name == "seed") return task == "mlp";
  return std::ranges::find(shaping_options, row.name) != shaping_options.end();
}

}  // namespace

checkpoint::Metadata model_description(const Options& options, const std::string& identity,
                                       std::int64_t step) {
  checkpoint::Metadata entries{
      {"format", "pt"}, {"task", options.task}, {"step", formatted("{}", step)}};
  for (const OptionRow& row : option_rows())
    if (is_described(row, options.task)) entries[std::string(row.name)] = option_text(options, row);
  if (identity.empty()) return entries;
  data::Vocabulary vocabulary = data::Vocabulary::from_text(identity);
  entries["vocabulary"] = vocabulary.is_bytes() ? "bytes" : "chars";
  if (!vocabulary.is_bytes()) entries["characters"] = vocabulary.alphabet();
  return entries;
}

const std::string& described(const checkpoint::Metadata& metadata, const std::string& name) {
  auto found = metadata.find(name);
  check_input(found != metadata.end(), "metadata: expected an entry '{}', found none", name);
  return found->second;
}

Options described_options(const checkpoint::Metadata& metadata) {
  try {
    Options options = default_options(described(metadata, "task"));
    for (const OptionRow& row : option_rows())
      if (is_described(row, options.task))
        set_option(options, row, described(metadata, std::string(row.name)));
    if (options.task == "gpt")
      set_option(options, option_row("vocabulary", "gpt"), described(metadata, "vocabulary"));
    check_input(options.task != "gpt" || options.width % options.heads == 0,
                "width {} is not a multiple of heads {}", options.width, options.heads);
    return options;
  } catch (const BadInput& error) {
    std::string what = error.what();
    throw BadInput(what.starts_with("metadata: ") ? what : "metadata: " + what);
  }
}

std::string described_identity(const checkpoint::Metadata& metadata) {
  if (described(metadata, "task") != "gpt") return {};
  if (described(metadata, "vocabulary") == "bytes") return data::Vocabulary::bytes().to_text();
  const std::string& characters = described(metadata, "characters");
  check_input(!characters.empty(), "metadata: characters: expected some, found none");
  data::Vocabulary vocabulary = data::Vocabulary::characters(characters, "the entry characters");
  check_input(vocabulary.alphabet() == characters,
              "metadata: characters: expected each once and in ascending order");
  return vocabulary.to_text();
}

}  // namespace lockstep::train
