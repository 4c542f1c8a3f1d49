#include "launch/output_relay.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launch/signals.h"
#include "sys/file_descriptor.h"

namespace lockstep::launch {
namespace {

struct SinkTest : testing::Test {
  SinkTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  std::string read_some() {
    std::string text(1 << 17, '\0');
    const ssize_t size = ::read(read_end.get(), text.data(), text.size());
    text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return text;
  }
  sys::FileDescriptor read_end, write_end;
  SignalActions actions;
};

TEST_F(SinkTest, AReaderThatWaitsDoesNotBlockTheWriterAndLosesNothing) {
  Sink sink(write_end.get());
  std::string sent;
  for (int i = 0; i < 40'000; ++i) sent += std::to_string(i) + "\n";
  sink.write(sent);  // more than a pipe holds, and the pipe is in blocking mode
  EXPECT_GT(sink.pending(), 0U);
  std::string received;
  while (received.size() < sent.size()) {
    received += read_some();
    sink.flush();
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(sink.pending(), 0U);
  EXPECT_EQ(::fcntl(write_end.get(), F_GETFL) & O_NONBLOCK,
            0);  // the flags of the shell's terminal are unchanged
}

TEST_F(SinkTest, IsFullBeforeItTakesMuchMemory) {
  Sink sink(write_end.get());
  EXPECT_FALSE(sink.full());
  sink.write(std::string(2 << 20, 'x'));
  EXPECT_TRUE(sink.full());
}

TEST_F(SinkTest, AReaderThatHasGoneIsRememberedAndNoLongerWrittenTo) {
  Sink sink(write_end.get());
  read_end.reset();
  sink.write("lost\n");
  EXPECT_EQ(sink.lost(), EPIPE);
  sink.write(std::string(2 << 20, 'x'));
  EXPECT_EQ(sink.pending(), 0U);
}

TEST_F(SinkTest, KnowsWhenTwoDescriptorsAreOnePlace) {
  const sys::FileDescriptor again(::dup(write_end.get()));
  const sys::FileDescriptor file(::memfd_create("other", MFD_CLOEXEC));
  EXPECT_TRUE(Sink(write_end.get()).same_place(Sink(again.get())));
  EXPECT_FALSE(Sink(write_end.get()).same_place(Sink(file.get())));
}

TEST(Sink, AClosedDescriptorIsLostFromTheStart) {
  Sink sink(-1);
  EXPECT_EQ(sink.lost(), EBADF);
  sink.write("nothing happens");
}

}  // namespace
}  // namespace lockstep::launch
