#include "sys/sockets.h"

#include "sys/files.h"

#include "support/processes.h"
#include "support/sockets.h"
#include "support/soon.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <string>

#include <fcntl.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

using namespace std::chrono_literals;
using test::soon;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

TEST(DescriptorPassing, AnotherProcessReadsTheFile) {
  test::TemporaryFolder folder;
  AtomicFile::write(folder / "a", "content");
  auto [left, right] = test::socket_pair();
  test::expect_ranks(2, [&](int rank) {
    if (rank == 0) {
      FileDescriptor file(::open((folder / "a").c_str(), O_RDONLY | O_CLOEXEC));
      int numbers[] = {file.get()};
      send_descriptors(left.get(), bytes_of("note"), numbers, soon());
      return;
    }
    std::string note(4, ' ');
    auto files =
        receive_descriptors(right.get(), std::as_writable_bytes(std::span(note)), 1, soon());
    EXPECT_EQ(note, "note");
    EXPECT_EQ(read_file("/proc/self/fd/" + std::to_string(files.at(0).get())), "content");
    EXPECT_EQ(::fcntl(files[0].get(), F_GETFD), FD_CLOEXEC);
  });
}

TEST(DescriptorPassing, AWrongNumberIsRefusedAndNothingStaysOpen) {
  auto [left, right] = test::socket_pair();
  std::size_t before = open_descriptors();
  for (std::size_t sent : {0, 1, 3}) {
    std::vector<int> numbers(sent, left.get());
    std::byte byte{};
    send_descriptors(left.get(), std::span(&byte, 1), numbers, soon());
    EXPECT_THROW((void)receive_descriptors(right.get(), std::span(&byte, 1), 2, soon()), BadInput);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(DescriptorPassing, AsManyAsAllowedArrive) {
  auto [left, right] = test::socket_pair();
  std::vector<int> numbers(max_passed_descriptors, left.get());
  std::byte byte{};
  send_descriptors(left.get(), std::span(&byte, 1), numbers, soon());
  EXPECT_EQ(receive_descriptors(right.get(), std::span(&byte, 1), numbers.size(), soon()).size(),
            numbers.size());
  numbers.push_back(left.get());
  EXPECT_THROW(send_descriptors(left.get(), std::span(&byte, 1), numbers, soon()), InvalidArgument);
}

TEST(DescriptorPassing, EndsAtTheDeadlineAndWithThePeer) {
  auto [left, right] = test::socket_pair();
  std::byte byte{};
  EXPECT_THROW(
      (void)receive_descriptors(right.get(), std::span(&byte, 1), 1, Deadline::after(20ms)),
      Timeout);
  left.reset();
  EXPECT_THROW((void)receive_descriptors(right.get(), std::span(&byte, 1), 1, soon()), PeerLost);
}

TEST(DescriptorPassing, ThePeerIsKnown) {
  auto [left, right] = test::socket_pair();
  PeerCredentials peer = peer_credentials(left.get());
  EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_EQ(peer.uid, ::getuid());
  EXPECT_EQ(peer.gid, ::getgid());
}

}  // namespace
}  // namespace lockstep::sys
