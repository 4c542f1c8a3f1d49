// lockstep-eval: evaluates a model of `lockstep train` on the data of its run or on other data.
#include "base/format.h"
#include "sys/program.h"
#include "train/program.h"
#include "train/progress.h"

#include "train/evaluator.h"

#include <lockstep/comm/device.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace lockstep;

constexpr const char* command = "lockstep eval";
constexpr const char* about =
    "Measures a trained model on all of FILE, or without --data on the validation part of the\n"
    "data that its run was given. RUN is the folder of a run, a checkpoint folder in it, or a\n"
    "file model.safetensors or best.safetensors.\n";

struct Given {
  train::EvaluateOptions what;
  std::string device;
  std::int64_t ranks = 0;
};

CommandOptions declared(Given& given) {
  CommandOptions options(command, "RUN [OPTIONS]", about, CommandOptions::Words::allowed);
  options.add(
      {"data", "FILE",
       "text or folder of text for a gpt, llama or moe; folder of images for mnist and cifar"},
      text_into(given.what.data));
  options.add({"bpe", "FOLDER",
               "of a RUN with --vocabulary bpe: its vocab.json and merges.txt, where they are not "
               "where they were"},
              text_into(given.what.bpe));
  options.add({"batches", "N",
               "measure so many batches, spread evenly over the data (gpt: 4096 tokens, mnist: 250 "
               "images, mlp: 1000 rows each); 0: everything",
               "0"},
              number_into(given.what.batches, 0, std::int64_t{1} << 40));
  options.add(
      {"device", "DEVICE",
       "where a rank computes: cpu, cuda or cuda:N; without it, a GPU if the rank sees one"},
      text_into(given.device));
  options.add({"ranks", "N", "processes to start on this machine", "1", 'n'},
              number_into(given.ranks, 1, 4096));
  return options;
}

int evaluate(const Given& given, const Group& world) {
  train::Progress progress(stderr, train::is_terminal(stderr));
  auto tell = [&](double share) {
    progress.show_text(formatted("evaluating {:.0f}%", 100 * share));
  };
  train::SavedEvaluation found = train::evaluate_saved(given.what, world, tell);
  progress.finish();
  if (world.is_root()) sys::write_out(found.line + "\n");
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> words(arguments + 1, arguments + count);
  return sys::run_program(command, [&] {
    Given given;
    CommandOptions options = declared(given);
    if (const auto code = sys::answer(options.read(words), options)) return *code;
    if (options.words().size() != 1)
      throw UsageError(options.words().empty()
                           ? "RUN is missing: name a run's folder or a file model.safetensors"
                           : formatted("unexpected word '{}'", options.words()[1]));
    given.what.run = options.words().front();
    return train::run_ranks({.command = command,
                             .words = words,
                             .ranks = given.ranks,
                             .device = given.device,
                             .body = [&](const Group& world) {
                               given.what.device = device();
                               return evaluate(given, world);
                             }});
  });
}
