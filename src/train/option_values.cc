#include "train/option_values.h"

#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"
#include "train/option_table.h"

#include <lockstep/plan/schedule.h>

#include <array>
#include <cstdint>
#include <utility>

namespace lockstep::train {
namespace {

using Dtype = std::optional<c10::ScalarType>;

constexpr std::string_view by_power_sgd = "powersgd:";

}  // namespace

std::string mesh_text(const std::vector<MeshAxis>& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh) axes.push_back(formatted("{}={}", axis.name, axis.size));
  return join(axes, ",");
}

std::string hook_text(const HookOptions& hook) {
  std::vector<std::string> parts;
  if (hook.dtype) parts.emplace_back(*hook.dtype == at::kHalf ? "fp16" : "bf16");
  if (hook.power_sgd.rank > 0)
    parts.push_back(formatted("{}{}", by_power_sgd, hook.power_sgd.rank));
  return parts.empty() ? "none" : join(parts, "+");
}

HookOptions parse_hook(std::string_view text) {
  const auto bad = [&] {
    throw BadInput(
        formatted("expected none, bf16, fp16, powersgd:RANK, bf16+powersgd:RANK or "
                  "fp16+powersgd:RANK, found '{}'",
                  visible(text)));
  };
  HookOptions hook;
  if (text == "none") return hook;
  std::string_view rest = text;
  if (rest.starts_with("bf16")) hook.dtype = at::kBFloat16;
  if (rest.starts_with("fp16")) hook.dtype = at::kHalf;
  if (hook.dtype) {
    rest.remove_prefix(4);
    if (rest.empty()) return hook;
    if (!rest.starts_with('+')) bad();
    rest.remove_prefix(1);
  }
  if (!rest.starts_with(by_power_sgd)) bad();
  rest.remove_prefix(by_power_sgd.size());
  const std::optional<std::int64_t> rank = parse_integer(rest);
  if (!rank || *rank < 1) bad();
  hook.power_sgd.rank = *rank;
  return hook;
}

WrittenValue shard_in_words(Options& options) {
  const auto names = names_of(ShardKind{});
  WrittenValue value = in_words<ShardKind>({names.begin(), names.end()}, options.shard);
  std::erase(value.words, word_of(ShardKind::automatic));  // no text of it
  value.text = [&options] { return std::string(word_of(shard_of(options))); };
  value.file_text = [&options] {
    const ShardKind meant = shard_of(options);
    return std::string(word_of(meant == ShardKind::none ? meant : options.shard));
  };
  return value;
}

WrittenValue mesh_as_text(std::vector<MeshAxis>& mesh) {
  return {.text = [&mesh] { return mesh_text(mesh); },
          .set =
              [&mesh](std::string_view text) {
                try {
                  mesh = text.empty() ? std::vector<MeshAxis>() : parse_axes(text);
                } catch (const BadInput& error) {
                  throw BadInput(visible(error.what()));
                }
              }};
}

WrittenValue hook_as_text(HookOptions& hook) {
  return {.text = [&hook] { return hook_text(hook); },
          .set =
              [&hook](std::string_view text) {
                const HookOptions found = parse_hook(text);
                hook.dtype = found.dtype;
                hook.power_sgd.rank = found.power_sgd.rank;
              }};
}

WrittenValue schedule_in_words(std::string& pipeline) {
  std::vector<Named<std::string>> names;
  for (const std::string_view name : plan::schedule_names())
    names.push_back({name, std::string(name)});
  return in_words(std::move(names), pipeline);
}

WrittenValue dtype_in_words(Dtype& dtype) {
  WrittenValue value = in_words<Dtype>(
      {{"fp32", std::nullopt}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}, dtype);
  // A program may name the dtype that stands for none.
  value.text = [&dtype, text = value.text] { return dtype == at::kFloat ? "fp32" : text(); };
  return value;
}

WrittenValue consistency_in_words(std::optional<ps::Consistency>& consistency) {
  return in_words<std::optional<ps::Consistency>>(
      {{"auto", std::nullopt},
       {"synchronous", ps::Consistency::synchronous},
       {"stale-synchronous", ps::Consistency::stale_synchronous},
       {"asynchronous", ps::Consistency::asynchronous}},
      consistency);
}

WrittenValue time_as_text(Duration& time) {
  return {.text = [&time] { return format_duration(time); },
          .set =
              [&time](std::string_view text) {
                const std::optional<Duration> found = parse_duration(text);
                check_input(found && *found >= Duration::zero(),
                            "expected a time such as 10, 2.5s or 1m, found '{}'", visible(text));
                time = *found;
              }};
}

WrittenValue node_shared_as_flag(ShardStorage& storage) {
  return in_words<ShardStorage>(
      {{"false", ShardStorage::private_memory}, {"true", ShardStorage::node_shared}}, storage);
}

WrittenValue int8_as_flag(PseudoGradients& gradients) {
  return in_words<PseudoGradients>(
      {{"false", PseudoGradients::float32}, {"true", PseudoGradients::int8}}, gradients);
}

}  // namespace lockstep::train
