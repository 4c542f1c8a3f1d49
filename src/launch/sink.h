// Where output goes: a terminal, a pipe, a file. Never blocks, and outlives a reader that has gone.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::launch {

// Holds what the descriptor cannot take yet. The descriptor is not owned and its flags are not
// touched (the shell shares them): POLLOUT promises room for one page, so no more than that is
// written at a time.
class Sink {
 public:
  explicit Sink(int descriptor);

  // Queues the bytes and writes what can be written now. Dropped when the sink is lost.
  void write(std::string_view bytes);
  // Writes what can be written now.
  void flush();

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::size_t pending() const { return queue_.size() - sent_; }
  // The caller of write() should wait until it has drained.
  [[nodiscard]] bool full() const { return pending() > (1 << 20); }
  // errno of the write that failed for good (EPIPE: the reader has gone), else 0.
  [[nodiscard]] int lost() const { return lost_; }
  // Both write to the same terminal, pipe or file.
  [[nodiscard]] bool same_place(const Sink& other) const;

 private:
  // Bytes written; 0: not now.
  std::size_t write_some();

  int descriptor_;
  bool regular_file_ = false;
  std::string queue_;
  std::size_t sent_ = 0;  // of queue_
  int lost_ = 0;
};

}  // namespace lockstep::launch
