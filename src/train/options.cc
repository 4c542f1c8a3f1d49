#include <lockstep/train/options.h>

#include "base/format.h"
#include "base/nearest.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

using O = Options;
constexpr double unbounded = 1e15;
constexpr std::string_view all_tasks = "gpt mnist mlp";

// One table for the command line, for TOML files, and for --help.
const std::array rows{
    OptionRow{"data", &O::data,
              "file or folder to learn from (gpt: text; mnist: the four IDX files)", "gpt mnist"},
    OptionRow{"out", &O::out,
              "folder of the run: config.toml, metrics.jsonl, checkpoints, model.safetensors"},
    OptionRow{"resume",
              &O::resume,
              "go on from the newest checkpoint in --out",
              all_tasks,
              {},
              0,
              unbounded,
              false},
    OptionRow{
        "resume-from",
        &O::resume_from,
        "go on from this checkpoint in --out, such as step-00000100; newer ones are set aside",
        all_tasks,
        {},
        0,
        unbounded,
        false},
    OptionRow{"allow-other-data",
              &O::allow_other_data,
              "with --resume: go on though the data is not what it was",
              all_tasks,
              {},
              0,
              unbounded,
              false},
    OptionRow{"steps", &O::steps, "optimizer updates to make", "gpt mnist mlp", {}, 1},
    OptionRow{"epochs",
              &O::epochs,
              "passes over the training data, instead of --steps",
              "gpt mnist mlp",
              {},
              1},
    OptionRow{
        "batch", &O::batch, "rows of one step, over all ranks", "gpt mnist mlp", {}, 1, 1 << 24},
    OptionRow{"accumulate",
              &O::accumulate,
              "micro-batches a rank and step",
              "gpt mnist mlp",
              {},
              1,
              1 << 20},
    OptionRow{"seed", &O::seed, "seed of weights, order and dropout", "gpt mnist mlp", {}, 0},
    OptionRow{"optimizer", &O::optimizer, "adamw or sgd", "gpt mnist mlp", "adamw sgd"},
    OptionRow{"lr", &O::lr, "learning rate", "gpt mnist mlp", {}, 0, 1e6},
    OptionRow{"momentum", &O::momentum, "of sgd", "gpt mnist mlp", {}, 0, 1},
    OptionRow{"beta1", &O::beta1, "of adamw", "gpt mnist mlp", {}, 0, 0.999999},
    OptionRow{"beta2", &O::beta2, "of adamw", "gpt mnist mlp", {}, 0, 0.999999},
    OptionRow{"weight-decay",
              &O::weight_decay,
              "on matrices, not on vectors",
              "gpt mnist mlp",
              {},
              0,
              1e6},
    OptionRow{"clip", &O::clip, "largest global norm of the gradients; 0: any"},
    OptionRow{"schedule", &O::schedule, "constant, step, cosine, wsd or one-cycle", "gpt mnist mlp",
              "constant step cosine wsd one-cycle"},
    OptionRow{"warmup", &O::warmup, "steps in which the learning rate rises from 0"},
    OptionRow{"min-lr", &O::min_lr, "where cosine and wsd end"},
    OptionRow{"decay", &O::decay, "steps in which wsd falls; 0: a fifth of the run"},
    OptionRow{"step-size", &O::step_size,
              "steps between two decays of the step schedule; 0: one epoch"},
    OptionRow{"gamma", &O::gamma, "factor of one decay", "gpt mnist mlp", {}, 0, 1},
    OptionRow{"eval-every", &O::eval_every,
              "steps between evaluations; 0: each epoch, or only at the end"},
    OptionRow{"eval-batches", &O::eval_batches,
              "batches of an evaluation during training (gpt: 4096 tokens, mnist: 250 images, mlp: "
              "1000 rows each); 0: all, as at the end"},
    OptionRow{"save-every", &O::save_every,
              "steps between checkpoints; 0: each epoch, or only at the end"},
    OptionRow{"keep", &O::keep, "newest checkpoints to keep; 0: all"},
    OptionRow{"patience", &O::patience,
              "evaluations without a better validation loss before stopping; 0: never"},
    OptionRow{
        "log-every", &O::log_every, "steps between lines of metrics.jsonl", "gpt mnist mlp", {}, 1},
    OptionRow{
        "layers", &O::layers, "blocks of the gpt, layers of the mlp", "gpt mlp", {}, 1, 10'000},
    OptionRow{"heads", &O::heads, "attention heads", "gpt", {}, 1, 10'000},
    OptionRow{"width", &O::width, "features between layers", "gpt mlp", {}, 1, 1 << 20},
    OptionRow{"block", &O::block, "tokens in a row", "gpt", {}, 1, 1 << 20},
    OptionRow{"dropout", &O::dropout, "share of activations that are dropped", "gpt", {}, 0, 0.99},
    OptionRow{"vocabulary", &O::vocabulary, "chars (those of the text) or bytes (all 256)", "gpt",
              "chars bytes"},
    OptionRow{"sample", &O::sample, "tokens of text to write at the end", "gpt", {}, 0, 1 << 20},
    OptionRow{"sample-every", &O::sample_every,
              "steps between samples of --sample (or 200) tokens during training; 0: none", "gpt"},
    OptionRow{"shard", &O::shard,
              "what ranks divide between them: none, optimizer, gradients (and optimizer) or full",
              "gpt mnist mlp", "none optimizer gradients full"},
    OptionRow{"node-shared", &O::node_shared,
              "with --shard: ranks of one machine have the parameters in memory once"},
    OptionRow{"reduce-in-step", &O::reduce_in_step,
              "with --node-shared: the optimizer sums gradients over the ranks as it reads them"},
    OptionRow{"offload", &O::offload,
              "with --shard: folder for shards and optimizer state that are not in use"},
    OptionRow{"deferred", &O::deferred,
              "with --shard: a new model gets its memory one unit at a time, while it is divided"},
    OptionRow{"ranks",
              &O::ranks,
              "processes to start on this machine; 0: as the launcher says, else 1",
              "gpt mnist mlp",
              {},
              0,
              4096},
    OptionRow{"threads",
              &O::threads,
              "threads of a rank; 0: its share of the cores",
              "gpt mnist mlp",
              {},
              0,
              4096},
};

Options gpt_defaults() {
  Options options;
  options.steps = 2000;
  options.batch = 12;
  options.lr = 1e-3;
  options.min_lr = 1e-4;
  options.schedule = "cosine";
  options.warmup = 100;
  options.beta2 = 0.99;
  options.weight_decay = 0.1;
  options.clip = 1;
  options.eval_every = 250;
  options.eval_batches = 20;
  options.save_every = 1000;
  return options;
}

Options mnist_defaults() {
  Options options;
  options.task = "mnist";
  options.epochs = 10;
  options.batch = 64;
  options.optimizer = "sgd";
  options.lr = 0.01;
  options.momentum = 0.9;
  options.schedule = "step";
  options.gamma = 0.7;
  return options;
}

Options mlp_defaults() {
  Options options;
  options.task = "mlp";
  options.steps = 500;
  options.batch = 32;
  options.lr = 1e-3;
  options.layers = 2;
  options.width = 64;
  return options;
}

[[noreturn]] void bad_value(const OptionRow& row, std::string_view expected,
                            std::string_view found) {
  throw BadInput(formatted("{}: expected {}, found '{}'", row.name, expected, found));
}

template <class Number>
Number parse_option_number(const OptionRow& row, std::string_view text, std::string_view expected) {
  Number value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) bad_value(row, expected, text);
  double as_double = static_cast<double>(value);
  if (!(as_double >= row.least && as_double <= row.most))
    bad_value(row,
              row.most < unbounded ? formatted("{} from {} to {}", expected, row.least, row.most)
                                   : formatted("{} of at least {}", expected, row.least),
              text);
  return value;
}

struct Setter {
  Options& options;
  const OptionRow& row;
  std::string_view text;

  void operator()(std::string Options::*member) const {
    std::vector<std::string_view> words = words_of(row.choices);
    if (!words.empty() && std::ranges::find(words, text) == words.end())
      throw BadInput(formatted("{}: {}", row.name, unknown_name("value", text, words)));
    options.*member = text;
  }
  void operator()(std::int64_t Options::*member) const {
    options.*member = parse_option_number<std::int64_t>(row, text, "a whole number");
    if (member == &Options::steps) options.epochs = 0;
    if (member == &Options::epochs) options.steps = 0;
  }
  void operator()(double Options::*member) const {
    options.*member = parse_option_number<double>(row, text, "a number");
  }
  void operator()(bool Options::*member) const {
    if (text != "true" && text != "false") bad_value(row, "true or false", text);
    options.*member = text == "true";
  }
};

}  // namespace

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    std::string_view word = text.substr(0, text.find(' '));
    if (!word.empty()) words.push_back(word);
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return words;
}

bool OptionRow::is_for(std::string_view task) const {
  std::vector<std::string_view> names = words_of(tasks);
  return std::ranges::find(names, task) != names.end();
}

std::span<const OptionRow> option_rows() { return rows; }

std::string_view task_names() { return "gpt mnist mlp"; }

const OptionRow& option_row(std::string_view name, std::string_view task) {
  std::vector<std::string_view> names;
  for (const OptionRow& row : rows) {
    if (row.is_for(task)) names.push_back(row.name);
    if (row.name != name) continue;
    if (row.is_for(task)) return row;
    throw BadInput(formatted("{} is an option of {}, not of {}", name,
                             listed(words_of(row.tasks), " and "), task));
  }
  throw BadInput(unknown_name("option", name, names));
}

Options default_options(std::string_view task) {
  if (task == "gpt") return gpt_defaults();
  if (task == "mnist") return mnist_defaults();
  if (task == "mlp") return mlp_defaults();
  throw BadInput(unknown_name("task", task, words_of(task_names())));
}

void set_option(Options& options, const OptionRow& row, std::string_view text) {
  std::visit(Setter{options, row, text}, row.member);
}

std::string option_text(const Options& options, const OptionRow& row) {
  return std::visit([&](auto member) { return formatted("{}", options.*member); }, row.member);
}

void check_options(const Options& options, int ranks) {
  std::int64_t parts = options.accumulate * ranks;
  if (options.batch % parts != 0)
    throw BadInput(formatted(
        "--batch {} cannot be split evenly: {} ranks times {} micro-batches make {} parts",
        options.batch, ranks, options.accumulate, parts));
  if (options.task == "gpt" && options.width % options.heads != 0)
    throw BadInput(
        formatted("--width {} is not a multiple of --heads {}", options.width, options.heads));
  if (options.min_lr > options.lr)
    throw BadInput(formatted("--min-lr {} is above --lr {}", options.min_lr, options.lr));
  for (auto [given, name] : {std::pair(options.node_shared, "--node-shared"),
                             std::pair(!options.offload.empty(), "--offload"),
                             std::pair(options.deferred, "--deferred")})
    if (given && options.shard == "none")
      throw BadInput(formatted("{} needs --shard optimizer, gradients or full", name));
  if (options.reduce_in_step && !options.node_shared)
    throw BadInput("--reduce-in-step needs --node-shared");
  if (options.out.empty()) throw BadInput("--out is missing: name a folder for the run");
  if (options.data.empty() && options.task != "mlp")
    throw BadInput("--data is missing: name a file or folder to learn from");
}

}  // namespace lockstep::train
