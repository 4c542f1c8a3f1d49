#include "launch/output_relay.h"

#include "base/format.h"
#include "base/text.h"
#include "base/visible.h"
#include "launch/report.h"

#include <cstring>

namespace lockstep::launch {

OutputRelay::OutputRelay(const WorkerSpec& spec)
    : spec_(spec),
      output_(spec.output),
      error_(spec.error),
      output_printer_(output_, output_line_, spec.prefix),
      error_printer_(error_, error_.same_place(output_) ? output_line_ : error_line_, spec.prefix) {
}

void OutputRelay::say(const std::string& line) { error_printer_.say(speaker + visible_line(line)); }

void OutputRelay::watch(Poller& poller) {
  for (Sink* sink : {&output_, &error_})
    if (sink->pending() > 0) poller.watch(sink->descriptor(), POLLOUT, [sink] { sink->flush(); });
}

void OutputRelay::watch(Poller& poller, Worker& worker) {
  if (output_.full() || error_.full()) return;  // the rank waits, as it would for a slow terminal
  for (int stream = 0; stream < 2; ++stream)
    poller.watch(worker.output().descriptor(stream), POLLIN,
                 [&worker, stream] { worker.output().read(stream, Clock::now()); });
}

Deadline OutputRelay::show_unfinished(const Workers& workers, Clock::time_point now) {
  Deadline wake = Deadline::never();
  for (const auto& worker : workers) wake = wake.or_sooner(worker->output().show_unfinished(now));
  return wake;
}

bool OutputRelay::say_losses(const Workers& workers) {
  for (const auto& worker : workers)
    if (const int error = worker->output().take_log_error())
      say(formatted("cannot write {}: {}; the rank goes on without it", worker->output().log_file(),
                    std::strerror(error)));
  if (output_.lost() == 0 || std::exchange(loss_said_, true)) return false;
  const char* left = spec_.log_folder.empty() ? "dropped" : "only in their logs";
  say(formatted("standard output is gone ({}); {}", std::strerror(output_.lost()),
                spec_.stop_without_reader
                    ? "stopping the ranks"
                    : formatted("the ranks go on, what they print there is {}", left)));
  return spec_.stop_without_reader;
}

void OutputRelay::drain(const std::function<void(Poller&)>& watch_signals,
                        const bool& interrupted) {
  const auto pending = [&] { return output_.pending() + error_.pending(); };
  std::size_t left = pending();
  Deadline output_deadline = Deadline::after(spec_.output_timeout);
  while (left > 0 && !interrupted && !output_deadline.passed()) {
    Poller poller;
    watch_signals(poller);
    watch(poller);
    poller.wait(output_deadline);
    if (pending() == left) continue;
    left = pending();
    output_deadline = Deadline::after(spec_.output_timeout);
  }
  if (output_.pending() > 0 && error_.pending() == 0 && !interrupted)
    say(formatted("the reader of standard output took nothing for {}: {} were dropped",
                  format_duration(spec_.output_timeout),
                  format_bytes(static_cast<std::int64_t>(output_.pending()))));
}

}  // namespace lockstep::launch
