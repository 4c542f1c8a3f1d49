// What a training run is told. Every field has one name, the same on the command line
// (`--weight-decay 0.1`), in a TOML file
// (`weight-decay = 0.1`) and in the config.toml that a run leaves behind; option_rows() is the only
// place where these names stand.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct Options {
  std::string task = "gpt";  // gpt, mnist, mlp

  // Where things are.
  std::string data;               // a file or folder; mlp makes its own
  std::string out;                // the run's folder
  bool resume = false;            // go on from the newest checkpoint in `out`
  std::string resume_from;        // "step-00000100": from that one instead; empty: the newest
  bool allow_other_data = false;  // on a resume, what is learned from may have changed

  // How long, and what one step takes. Exactly one of steps and epochs is positive.
  std::int64_t steps = 0;
  std::int64_t epochs = 0;
  std::int64_t batch = 0;       // rows of one step over all ranks and micro-batches
  std::int64_t accumulate = 1;  // micro-batches a rank and step; gradients are sent with the last
  std::int64_t seed = 1337;

  // The optimizer and its learning rate.
  std::string optimizer = "adamw";  // adamw, sgd
  double lr = 0;
  double momentum = 0;  // sgd
  double beta1 = 0.9;   // adamw
  double beta2 = 0.999;
  double weight_decay = 0;            // on matrices only
  double clip = 0;                    // largest global gradient norm; 0: no clipping
  std::string schedule = "constant";  // constant, step, cosine, wsd, one-cycle
  std::int64_t warmup = 0;            // steps from 0 to lr
  double min_lr = 0;                  // cosine and wsd end here
  std::int64_t decay = 0;             // wsd: steps of its fall; 0: a fifth of the run
  std::int64_t step_size = 0;         // step: epochs (steps for gpt) between decays
  double gamma = 0.1;                 // step: factor of one decay

  // Looking, stopping, saving; in steps. 0: at the end (and at each epoch's end when the run counts
  // epochs).
  std::int64_t eval_every = 0;
  std::int64_t save_every = 0;
  std::int64_t keep = 2;  // newest checkpoints that stay; 0: all
  std::int64_t patience =
      0;  // evaluations without a better validation loss before the run stops; 0: never
  std::int64_t log_every = 10;
  std::int64_t eval_batches = 0;  // largest part of the validation data in an evaluation; 0: all
  std::int64_t sample_every = 0;  // gpt: 0: only at the end, when `sample` says so

  // The model.
  std::int64_t layers = 4;
  std::int64_t heads = 4;  // gpt
  std::int64_t width = 128;
  std::int64_t block = 64;  // gpt: characters a row
  double dropout = 0;
  std::string vocabulary = "chars";  // gpt: chars, bytes
  std::int64_t sample = 0;           // gpt: characters of a sample, written at the end

  // How the ranks divide the model between them; none: every rank has all of it.
  std::string shard = "none";   // none, optimizer, gradients, full: ShardLevel
  bool node_shared = false;     // what ranks of one host share is there once
  bool reduce_in_step = false;  // gradients are summed where the update reads them
  std::string offload;          // a folder for what is not in use; empty: it stays in memory
  bool deferred = false;        // no rank ever has all of a new model in memory

  // Processes.
  std::int64_t ranks = 0;    // processes to start; 0: as the launcher says, else 1
  std::int64_t threads = 0;  // a rank; 0: its share of the cores

  // For messages; no options. The command line fills them in.
  std::string command;  // what began this run, as a shell reads it, without --resume
  std::string
      data_place;  // "out/config.toml line 2": where `data` is from; empty: the command line
};

// One option: its name, where it is kept, what it may be.
struct OptionRow {
  using Member = std::variant<std::string Options::*, std::int64_t Options::*, double Options::*,
                              bool Options::*>;

  std::string_view name;
  Member member;
  std::string_view help;
  std::string_view tasks = "gpt mnist mlp";  // those that have it
  std::string_view choices = {};  // texts: the words allowed, separated by blanks; empty: any
  double least = 0;               // numbers: bounds, both included
  double most = 1e15;
  bool kept = true;  // in config.toml and in checkpoints; false: of one start only

  [[nodiscard]] bool is_for(std::string_view task) const;
};

// All options, in the order in which --help and config.toml list them.
[[nodiscard]] std::span<const OptionRow> option_rows();

// The row called `name`. Throws BadInput that suggests the nearest name that `task` has.
[[nodiscard]] const OptionRow& option_row(std::string_view name, std::string_view task);

// The words of a text that blanks separate, as in OptionRow::tasks and task_names().
[[nodiscard]] std::vector<std::string_view> words_of(std::string_view text);

// "gpt mnist mlp".
[[nodiscard]] std::string_view task_names();

// The options with which `task` is known to train well. Throws BadInput for a word that is no task.
[[nodiscard]] Options default_options(std::string_view task);

// Sets one option from text and checks it. Throws BadInput that says what was expected and found.
// Setting steps clears epochs and the other way round.
void set_option(Options& options, const OptionRow& row, std::string_view text);
// The value as set_option reads it.
[[nodiscard]] std::string option_text(const Options& options, const OptionRow& row);

// What no single option can be blamed for: width and heads, batch and ranks. Throws BadInput.
void check_options(const Options& options, int ranks);

}  // namespace lockstep::train

#pragma GCC visibility pop
