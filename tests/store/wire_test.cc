#include "store/wire.h"

#include <gtest/gtest.h>

#include <limits>

#include <lockstep/base/error.h>

namespace lockstep::store {
namespace {

std::string from_hexadecimal(std::string_view text) {
  auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    bytes += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
    ++i;
  }
  return bytes;
}

TEST(Wire, TheExampleInTheHeaderIsTrue) {
  Message message{7, Code::set, 0, {"a", "xyz"}};
  std::string bytes = from_hexadecimal(
      "07 00 00 00 00 00 00 00  01  00 00 00 00 00 00 00 00  02 00 00 00"
      "01 00 00 00  61   03 00 00 00  78 79 7a");
  EXPECT_EQ(encode(message), bytes);
  EXPECT_EQ(decode(bytes), message);
  EXPECT_EQ(encode_length(bytes.size() + 17), from_hexadecimal("32 00 00 00"));
}

TEST(Wire, EveryMessageComesBack) {
  std::vector<Message> messages{
      {},
      {std::numeric_limits<std::uint64_t>::max(), Code::add, -1, {"key"}},
      {1, Code::wait, std::numeric_limits<std::int64_t>::min(),
       std::vector<std::string>(1000, "k")},
      {2, Code::refused, 0, {std::string("\0\xff", 2), "", std::string(100'000, 'x')}},
  };
  for (const Message& message : messages) EXPECT_EQ(decode(encode(message)), message);
}

TEST(Wire, AMessageIsWholeOrBadInput) {
  std::string bytes = encode({7, Code::set, 0, {"a", "xyz"}});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW((void)decode(bytes.substr(0, size)), BadInput) << size;
  }
  EXPECT_THROW((void)decode(bytes + "x"), BadInput);
}

TEST(Wire, UnknownCodesAndWildLengthsAreBadInput) {
  std::string bytes = encode({7, Code::set, 0, {"a", "xyz"}});
  for (int code : {0, 11, 100, 104, 255}) {
    std::string changed = bytes;
    changed[8] = static_cast<char>(code);
    EXPECT_THROW((void)decode(changed), BadInput) << code;
  }
  std::string many_parts = bytes, long_part = bytes;
  many_parts[17 + 2] = 2;
  long_part[21 + 3] = '\x7f';
  EXPECT_THROW((void)decode(many_parts), BadInput);
  EXPECT_THROW((void)decode(long_part), BadInput);
}

TEST(Wire, EncodeRefusesWhatTheOtherSideWould) {
  Message many{1, Code::wait, 0, std::vector<std::string>(max_parts + 1)};
  EXPECT_THROW((void)encode(many), InvalidArgument);
  Message most{1, Code::wait, 0, std::vector<std::string>(max_parts)};
  EXPECT_EQ(decode(encode(most)), most);
}

TEST(FrameReader, FramesMayArriveInAnyPieces) {
  std::string first(30, 'a'), second(1000, 'b');
  std::string stream = encode_length(first.size()) + first + encode_length(second.size()) + second;
  for (std::size_t piece : {1, 2, 3, 33, 34, 35, 500, 5000}) {
    FrameReader reader(0);
    std::vector<std::string> found;
    std::string frame;
    for (std::size_t i = 0; i < stream.size(); i += piece) {
      reader.append(std::string_view(stream).substr(i, piece));
      while (reader.next(frame)) found.push_back(frame);
    }
    EXPECT_EQ(found, (std::vector{first, second})) << piece;
  }
}

TEST(FrameReader, LengthsOutOfRangeAreBadInput) {
  std::string frame;
  for (std::size_t length :
       {std::size_t{0}, std::size_t{20}, max_message_bytes + 18, std::size_t{0xffffffff}}) {
    FrameReader reader(17);
    reader.append(encode_length(length));
    EXPECT_THROW((void)reader.next(frame), BadInput) << length;
  }
}

}  // namespace
}  // namespace lockstep::store
