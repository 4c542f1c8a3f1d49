// The counterpart of bench/peers/checkpoint.py: saves and loads a model and AdamW's state. The
// answer to "WHAT N" is the seconds of N repetitions of
//
//   save     checkpoint::save(): everything is on the disk when it returns
//   async    the time for which AsyncSaver::save() blocks, without the later wait
//   load     checkpoint::load() from the page cache
//   trusted  load without comparing checksums
//   memcpy   the lower bound of load: copies the same bytes from the page cache to allocated
//            memory. Files are mapped and all pages touched before, so there are no page faults.
//            Always uses one thread.
#include "base/check.h"
#include "serve.h"

#include "sys/heap.h"
#include "sys/mapped_file.h"
#include "sys/program.h"

#include <lockstep/base/deadline.h>
#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstring>
#include <filesystem>
#include <iostream>
#include <list>
#include <map>
#include <optional>

#include <unistd.h>

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;

// A module with the bytes of a model and of AdamW's two states per element.
class SavedTensors : public torch::nn::Module {
 public:
  explicit SavedTensors(std::int64_t bytes) {
    constexpr std::int64_t count = 16, element = sizeof(float), copies = 3;
    for (int i = 0; i < count; ++i) {
      at::Tensor parameter = register_parameter("p" + std::to_string(i),
                                                torch::randn({bytes / copies / element / count}));
      parameter.mutable_grad() = at::ones_like(parameter);
    }
  }
};

class CheckpointWork {
 public:
  CheckpointWork(fs::path folder, std::int64_t bytes)
      : folder_(std::move(folder)),
        model_(bytes),
        handle_(DistributedDataParallel(model_, Group())),
        adamw_(handle_.parameters(), torch::optim::AdamWOptions(1e-4)),
        saver_(Group()) {
    adamw_.step();
    checkpoint::save(folder_ / "loaded", handle_, adamw_, {.step = 1});
    async();  // the first save allocates memory
  }

  double save() {
    return seconds_of([&] { checkpoint::save(next(), handle_, adamw_, {.step = 1}); });
  }
  double async() {
    const fs::path out = next();
    const double seconds =
        seconds_of([&] { saver_.save(out, handle_, adamw_, {.step = 1}); }, /*is_over=*/false);
    saver_.wait();
    remove(out);
    return seconds;
  }
  double load(bool is_verified) {
    return seconds_of([&] {
      checkpoint::load(folder_ / "loaded/step-00000001", handle_, adamw_, {.verify = is_verified});
    });
  }
  double memcpy() {
    const fs::path step = folder_ / "loaded/step-00000001";
    for (const char* name : {"model.safetensors", "optimizer.safetensors"})
      if (copies_.size() < 2) copies_.emplace_back(step / name);
    const auto copy_all = [&] {
      for (Copy& copy : copies_)
        std::memcpy(copy.to.mutable_data_ptr(), copy.from.bytes().data(), copy.from.bytes().size());
    };
    if (!is_touched_) copy_all();
    is_touched_ = true;
    return seconds_of(copy_all);
  }

 private:
  struct Copy {
    explicit Copy(const fs::path& file)
        : from(file), to(at::empty({static_cast<std::int64_t>(from.bytes().size())}, at::kByte)) {}
    sys::MappedFile from;
    at::Tensor to;
  };

  template <typename Action>
  double seconds_of(const Action& action, bool is_over = true) {
    const auto start = Clock::now();
    action();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (is_over && !written_.empty()) remove(written_);
    return seconds;
  }

  fs::path next() { return written_ = folder_ / ("out" + std::to_string(++count_)); }
  void remove(const fs::path& out) {
    fs::remove_all(out);
    ::sync();  // keep writeback out of the next measurement
    written_.clear();
  }

  const fs::path folder_;
  SavedTensors model_;
  Handle handle_;
  optim::AdamW adamw_;
  checkpoint::AsyncSaver saver_;
  fs::path written_;
  int count_ = 0;
  std::list<Copy> copies_;
  bool is_touched_ = false;
};

}  // namespace

int serve_checkpoints(const Words& words) {
  std::string folder;
  std::int64_t mib = 512;
  int threads = 1;
  CommandOptions options("lockstep-bench-rank checkpoint", "", "");
  options.add({"folder", "FOLDER", ""}, text_into(folder));
  options.add({"mib", "N", ""}, number_into(mib, 1, 1 << 20));
  options.add({"threads", "N", ""}, number_into(threads, 1, 1024));
  if (auto code = sys::answer(options.read(words), options)) return *code;
  at::set_num_threads(threads);
  sys::keep_freed_memory();  // as in init()
  CheckpointWork work(folder, mib << 20);
  const std::map<std::string, std::function<double()>> kinds{
      {"save", [&] { return work.save(); }},
      {"async", [&] { return work.async(); }},
      {"load", [&] { return work.load(true); }},
      {"trusted", [&] { return work.load(false); }},
      {"memcpy", [&] { return work.memcpy(); }}};
  serve(std::cin, std::cout, {{"ready", true}}, [&](const std::string& line) {
    const auto blank = line.find(' ');
    const auto kind = kinds.find(line.substr(0, blank));
    check_input(blank != std::string::npos && kind != kinds.end(),
                "expected a line such as 'save 3', found '{}'", line);
    return seconds_of_steps(line.substr(blank + 1), kind->second);
  });
  return 0;
}

}  // namespace lockstep::bench
