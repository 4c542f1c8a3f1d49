#include "train/progress.h"

#include "base/environment.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/file_descriptor.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace lockstep::train {
namespace {

// Clears the rest of a longer previous line, and moves the cursor to the beginning. A carriage
// return ends each piece, so that a line-based reader passes it on at once.
constexpr std::string_view end_in_place = "\033[K\r";
constexpr std::chrono::milliseconds in_place_interval{100};

constexpr const char* terminal_variable = "LOCKSTEP_TERMINAL";
constexpr int usual_columns = 80;
constexpr int most_columns = 10'000;

constexpr const char* bright = "\033[36m";
constexpr const char* ordinary = "\033[0m";
const std::string between = "  ";
constexpr int rank_of_bar = 4;  // its priority among the figures
constexpr int no_bar = -1;
constexpr std::size_t least_bar = 10;
constexpr std::size_t most_bar = 32;

struct Figure {
  std::string text;
  int rank;
  bool is_shown = false;
};

// Formats a rate in few columns: "391", "25.1k", "1.25M".
std::string short_number(double value) {
  if (value < 10'000) return formatted("{:.0f}", value);
  if (value < 1e6) return formatted("{:.1f}k", value / 1e3);
  return formatted("{:.2f}M", value / 1e6);
}

std::string rate_text(const MetricsRow& row) {
  if (row.tokens_per_second.value_or(0) > 0)
    return short_number(*row.tokens_per_second) + " tokens/s";
  return row.samples_per_second > 0 ? short_number(row.samples_per_second) + " samples/s" : "";
}

std::string memory_text(const MetricsRow& row) {
  if (row.resident_bytes <= 0) return {};
  return formatted("{:.0f} MiB", static_cast<double>(row.resident_bytes) / (1 << 20));
}

std::string waiting_text(const MetricsRow& row) {
  if (row.resident_bytes <= 0) return {};
  if (row.backward_seconds > 0)
    return formatted("forward {:.1f}, backward {:.1f}, waiting {:.1f}, update {:.1f} ms",
                     row.forward_seconds * 1e3, row.backward_seconds * 1e3,
                     row.exposed_seconds * 1e3, row.update_seconds * 1e3);
  return formatted("{:.1f} ms waiting", row.exposed_seconds * 1e3);
}

std::string left_text(const MetricsRow& row) {
  return row.seconds_left ? duration_text(*row.seconds_left) + " left" : std::string();
}

// Marks figures as shown, in the order of their priority, until one does not fit; the last column
// stays free. Returns the columns of the bar, or 0 without a bar.
std::size_t fit(std::span<Figure> figures, int columns, int bars_rank) {
  auto room = static_cast<std::size_t>(std::max(0, columns - 1));
  std::size_t used = 0, bar = 0;
  for (int rank = 0; rank <= static_cast<int>(figures.size()); ++rank) {
    auto figure = std::ranges::find(figures, rank, &Figure::rank);
    if (rank != bars_rank && (figure == figures.end() || figure->text.empty())) continue;
    std::size_t width = rank == bars_rank ? least_bar : figure->text.size();
    if (used > 0) width += between.size();
    if (used + width > room) break;
    used += width;
    if (rank == bars_rank)
      bar = least_bar;
    else
      figure->is_shown = true;
  }
  return bar > 0 ? std::min(most_bar, bar + room - used) : 0;
}

// Returns "[====>     ]" with this many columns.
std::string bar_text(double share, std::size_t columns, bool colours) {
  std::size_t inside = columns - 2;
  auto done = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(inside));
  std::string filled(done, '=');
  if (done > 0 && done < inside) filled.back() = '>';
  if (colours) filled = bright + filled + ordinary;
  return formatted("[{}{}]", filled, std::string(inside - done, ' '));
}

// Returns the figures that fit, preceded by the bar if `share` is given.
std::string line_of(std::span<Figure> figures, LineLook look, std::optional<double> share = {}) {
  std::string line;
  const std::size_t columns = fit(figures, look.columns, share ? rank_of_bar : no_bar);
  if (columns > 0) line = bar_text(*share, columns, look.colours);
  for (const Figure& figure : figures) {
    if (!figure.is_shown) continue;
    const bool is_bright = look.colours && figure.text.starts_with("val_loss");
    line +=
        (line.empty() ? "" : between) + (is_bright ? bright + figure.text + ordinary : figure.text);
  }
  return line;
}

int columns_of(int descriptor) {
  winsize size = {};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

std::string loss_text(double loss, int digits) {
  const bool is_whole = std::abs(loss) >= std::pow(10, digits - 1);
  return is_whole ? formatted("{:.0f}", loss) : formatted("{:#.{}g}", loss, digits);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e8) return "?";
  auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) return formatted("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return formatted("{}:{:02}", whole / 60, whole % 60);
}

std::string progress_text(const MetricsRow& row) {
  return evaluation_line(row, {.columns = std::numeric_limits<int>::max()});
}

std::string progress_line(const MetricsRow& row, LineLook look) {
  double share = row.steps > 0 ? static_cast<double>(row.step) / static_cast<double>(row.steps) : 0;
  // In the order of the line. The number is the priority: figures with lower numbers are fitted
  // first.
  std::array<Figure, 7> figures{{{formatted("{:3}%", static_cast<int>(share * 100)), 0},
                                 {formatted("{}/{}", row.step, row.steps), 5},
                                 {"loss " + loss_text(row.loss), 1},
                                 {rate_text(row), 3},
                                 {memory_text(row), 6},
                                 {waiting_text(row), 7},
                                 {left_text(row), 2}}};
  return line_of(figures, look, share);
}

std::string evaluation_line(const MetricsRow& row, LineLook look) {
  std::array<Figure, 8> figures{
      {{formatted("step {}/{}", row.step, row.steps), 0},
       {"loss " + loss_text(row.loss), 2},
       {row.val_loss ? "val_loss " + loss_text(*row.val_loss) : std::string(), 1},
       {row.accuracy ? formatted("accuracy {:.4f}", *row.accuracy) : std::string(), 3},
       {rate_text(row), 4},
       {memory_text(row), 6},
       {waiting_text(row), 7},
       {left_text(row), 5}}};
  return line_of(figures, look);
}

std::optional<std::string> terminal_of(std::FILE* stream) {
  const auto term = environment::text("TERM");
  if (term == "dumb") return std::nullopt;
  if (auto named = environment::text(terminal_variable)) return named;
  // Open MPI gives each rank its own terminal, and forwards the output.
  if (!term || environment::text("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  if (::isatty(::fileno(stream)) != 1) return std::nullopt;
  std::array<char, 256> path{};
  return ::ttyname_r(::fileno(stream), path.data(), path.size()) == 0 ? path.data() : "1";
}

bool is_terminal(std::FILE* stream) { return terminal_of(stream).has_value(); }

int terminal_columns(std::FILE* stream) {
  auto chosen = parse_integer(environment::text("COLUMNS").value_or(""));
  if (chosen && *chosen > 0 && *chosen < most_columns) return static_cast<int>(*chosen);
  int columns = columns_of(::fileno(stream));
  if (auto named = terminal_of(stream); columns == 0 && named && named->starts_with('/')) {
    // O_NOCTTY: this process has no controlling terminal, and must not acquire this one.
    sys::FileDescriptor terminal(
        ::open(named->c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    if (terminal) columns = columns_of(terminal.get());
  }
  return columns > 0 ? columns : usual_columns;
}

bool wants_colours() { return !environment::text("NO_COLOR"); }

Progress::Progress(std::FILE* stream, bool in_place, std::chrono::milliseconds plain_interval)
    : stream_(stream),
      in_place_(in_place),
      colours_(in_place && wants_colours()),
      interval_(in_place ? in_place_interval : plain_interval) {}

void Progress::show(const MetricsRow& row) {
  bool stays = row.val_loss.has_value();
  auto now = Clock::now();
  if (!stays && now < next_) return;
  next_ = now + interval_;
  if (!in_place_) return say(progress_text(row));
  LineLook look{.columns = terminal_columns(stream_), .colours = colours_};
  if (stays) return say(evaluation_line(row, look));
  print_to(stream_, "{}{}", progress_line(row, look), end_in_place);
  std::fflush(stream_);
  on_screen_ = true;
}

void Progress::show_text(std::string_view text) {
  auto now = Clock::now();
  bool is_first_plain = !in_place_ && next_ == Clock::time_point::min();
  if (now < next_) return;
  next_ = now + interval_;
  if (is_first_plain) return;  // a short run prints no such line
  if (!in_place_) return say(text);
  auto room = static_cast<std::size_t>(std::max(0, terminal_columns(stream_) - 1));
  print_to(stream_, "{}{}", text.substr(0, room), end_in_place);
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
