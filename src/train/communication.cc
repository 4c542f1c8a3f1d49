#include "train/communication.h"

#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"

#include <lockstep/parallel/data/power_sgd.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace lockstep::train {
namespace {

struct HookWords {
  std::string compression;  // bf16, fp16, or empty
  std::optional<std::int64_t> rank;
};

HookWords words_of(const std::string& text) {
  const auto bad = [&] {
    throw BadInput(
        formatted("--hook {}: expected none, bf16, fp16, powersgd:RANK, "
                  "bf16+powersgd:RANK or fp16+powersgd:RANK",
                  visible(text)));
  };
  HookWords words;
  std::string_view rest = text;
  for (const char* name : {"bf16", "fp16"})
    if (rest.starts_with(name)) words.compression = name;
  rest.remove_prefix(words.compression.size());
  if (!words.compression.empty() && rest.empty()) return words;
  if (!words.compression.empty()) {
    if (!rest.starts_with('+')) bad();
    rest.remove_prefix(1);
  }
  constexpr std::string_view power = "powersgd:";
  if (!rest.starts_with(power)) bad();
  rest.remove_prefix(power.size());
  words.rank = parse_integer(std::string(rest));
  if (!words.rank || *words.rank < 1) bad();
  return words;
}

// Options of one way to communicate, which mean nothing without it.
void check_needed(const Options& options) {
  const Options unset;
  auto needs = [](bool is_given, const std::string& given, const char* needed) {
    check_input(!is_given, "{} needs {}", given, needed);
  };
  if (!hook_of_options(options) || !words_of(options.hook).rank)
    needs(options.hook_start != 0, formatted("--hook-start {}", options.hook_start),
          "--hook powersgd:RANK");
  if (options.local_sgd == 0)
    needs(options.local_sgd_start != 0, formatted("--local-sgd-start {}", options.local_sgd_start),
          "--local-sgd N");
  if (options.diloco > 0) return;
  needs(options.diloco_int8, "--diloco-int8", "--diloco N");
  for (auto [given, standard, name] :
       {std::tuple(options.diloco_fragments, unset.diloco_fragments, "--diloco-fragments"),
        std::tuple(options.diloco_overlap, unset.diloco_overlap, "--diloco-overlap")})
    needs(given != standard, formatted("{} {}", name, given), "--diloco N");
  for (auto [given, standard, name] :
       {std::tuple(options.diloco_mixing, unset.diloco_mixing, "--diloco-mixing"),
        std::tuple(options.outer_lr, unset.outer_lr, "--outer-lr"),
        std::tuple(options.outer_momentum, unset.outer_momentum, "--outer-momentum")})
    needs(given != standard, formatted("{} {}", name, given), "--diloco N");
}

void check_diloco(const Options& options) {
  if (options.diloco == 0) return;
  check_input(options.diloco_fragments <= options.diloco,
              "--diloco-fragments {}: expected no more than the {} steps of --diloco",
              options.diloco_fragments, options.diloco);
  check_input(options.diloco_overlap < options.diloco,
              "--diloco-overlap {}: expected less than the {} steps of --diloco",
              options.diloco_overlap, options.diloco);
  check_input(options.outer_lr > 0, "--outer-lr {}: expected more than 0", options.outer_lr);
  check_input(options.outer_momentum < 1, "--outer-momentum {}: expected less than 1",
              options.outer_momentum);
  check_input(options.diloco_mixing < 1, "--diloco-mixing {}: expected less than 1",
              options.diloco_mixing);
}

}  // namespace

void check_communication(const Options& options) {
  check_needed(options);
  check_diloco(options);
  const std::string hook = formatted("--hook {}", options.hook);
  const std::string local = formatted("--local-sgd {}", options.local_sgd);
  const std::string diloco = formatted("--diloco {}", options.diloco);
  const bool has_hook = hook_of_options(options) != nullptr;
  std::string given;
  for (const auto& [is_given, name] :
       {std::pair(has_hook, hook), std::pair(options.local_sgd > 0, local),
        std::pair(options.diloco > 0, diloco)}) {
    if (!is_given) continue;
    check_input(given.empty(), "{} and {}: expected one of the two", given, name);
    given = name;
  }
  for (const auto& [is_given, name] :
       {std::pair(!given.empty(), given),
        std::pair(options.sync_batch_norm, std::string("--sync-batch-norm")),
        std::pair(options.uneven, std::string("--uneven"))}) {
    check_input(!is_given || options.strategy == "ddp",
                "{} needs --strategy ddp, found --strategy {}", name, options.strategy);
    check_input(!is_given || options.shard == "none", "{} needs --shard none, found --shard {}",
                name, options.shard);
  }
  for (const auto& [is_given, name] : {std::pair(options.sync_batch_norm, "--sync-batch-norm"),
                                       std::pair(options.uneven, "--uneven")})
    check_input(!is_given || !has_own_copies(options),
                "{}: with {} ranks do not wait for each other in every step: expected one of the "
                "two",
                name, given);
  check_input(!has_own_copies(options) || options.mesh.empty(),
              "{} takes all ranks: expected no --mesh, found {}", given, options.mesh);
  check_input(!options.uneven || !options.sync_batch_norm || options.accumulate == 1,
              "--uneven with --sync-batch-norm needs --accumulate 1, found {}: ranks with fewer "
              "rows would make fewer micro-batches",
              options.accumulate);
}

std::shared_ptr<CommunicationHook> hook_of_options(const Options& options) {
  if (options.hook == "none") return nullptr;
  const HookWords words = words_of(options.hook);
  std::shared_ptr<CommunicationHook> hook = average_hook();
  if (words.rank) hook = power_sgd({.rank = *words.rank, .start_step = options.hook_start});
  if (words.compression == "bf16") return bf16_compression(std::move(hook));
  if (words.compression == "fp16") return fp16_compression(std::move(hook));
  return hook;
}

DiLoCoOptions diloco_options(const Options& options) {
  return {
      .inner_steps = options.diloco,
      .outer_lr = options.outer_lr,
      .outer_momentum = options.outer_momentum,
      .pseudo_gradients = options.diloco_int8 ? PseudoGradients::int8 : PseudoGradients::float32,
      .fragments = static_cast<int>(options.diloco_fragments),
      .overlap_steps = options.diloco_overlap,
      .mixing = options.diloco_mixing};
}

}  // namespace lockstep::train
