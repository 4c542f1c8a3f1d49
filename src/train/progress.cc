#include <lockstep/base/format.h>
#include <lockstep/train/progress.h>

#include <unistd.h>
#include <cmath>
#include <cstdlib>

namespace lockstep::train {
namespace {

// What is left of a longer line before it goes, and the cursor back to its beginning: a carriage
// return ends each piece, so that a reader that works by lines passes it on at once.
constexpr std::string_view end_in_place = "\033[K\r";
constexpr std::chrono::milliseconds in_place_interval{100};

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e8) return "?";
  auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) return formatted("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return formatted("{}:{:02}", whole / 60, whole % 60);
}

std::string progress_text(const ProgressRow& row) {
  std::string text = formatted("step {}/{}  loss {:.3f}", row.step, row.steps, row.loss);
  if (row.val_loss) text += formatted("  val_loss {:.3f}", *row.val_loss);
  if (row.accuracy) text += formatted("  accuracy {:.4f}", *row.accuracy);
  text += row.tokens_per_second ? formatted("  {:.0f} tokens/s", *row.tokens_per_second)
                                : formatted("  {:.0f} samples/s", row.samples_per_second);
  if (row.resident_bytes > 0)
    text += formatted("  {:.0f} MB  {:.1f} ms waiting",
                      static_cast<double>(row.resident_bytes) / 1e6, row.exposed_seconds * 1e3);
  return text + formatted("  {} left", duration_text(row.seconds_left));
}

bool is_terminal(std::FILE* stream) {
  const char* passed_on = std::getenv("LOCKSTEP_TERMINAL");
  return ::isatty(::fileno(stream)) == 1 ||
         (passed_on != nullptr && std::string_view(passed_on) == "1");
}

Progress::Progress(std::FILE* stream, bool in_place, std::chrono::milliseconds plain_interval)
    : stream_(stream),
      in_place_(in_place),
      interval_(in_place ? in_place_interval : plain_interval) {}

void Progress::show(const ProgressRow& row) {
  bool stays = row.val_loss.has_value();
  auto now = Clock::now();
  if (!stays && now < next_) return;
  next_ = now + interval_;
  if (stays || !in_place_) return say(progress_text(row));
  print_to(stream_, "{}{}", progress_text(row), end_in_place);
  std::fflush(stream_);
  on_screen_ = true;
}

void Progress::show_text(std::string_view text) {
  auto now = Clock::now();
  if (now < next_) return;
  next_ = now + interval_;
  if (!in_place_) return say(text);
  print_to(stream_, "{}{}", text, end_in_place);
  std::fflush(stream_);
  on_screen_ = true;
}

void Progress::say(std::string_view line) {
  finish();
  print_to(stream_, "{}\n", line);
  std::fflush(stream_);
}

void Progress::finish() {
  if (!on_screen_) return;
  print_to(stream_, "{}", end_in_place);
  std::fflush(stream_);
  on_screen_ = false;
}

}  // namespace lockstep::train
