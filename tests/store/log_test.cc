#include "store/log.h"

#include <gtest/gtest.h>

#include <fstream>

#include <lockstep/base/error.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>
#include "store/raw_peer.h"
#include "support/fuzz.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "sys/files.h"

namespace lockstep::store {
namespace {

struct Opened {
  Table table;
  Sessions sessions;
  Log log;
  explicit Opened(const std::string& file) : log(file, table, sessions) {}

  void set(const std::string& key, const std::string& value) {
    table.set(key, value);
    log.note_key(key);
    log.commit();
  }
};

void write_file(const std::string& file, const std::string& content) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
}

class StoreLog : public testing::Test {
 protected:
  // Writes a log with several changes and returns its content.
  std::string some_log() {
    Opened opened(file_);
    name_ = opened.log.store_name();
    opened.set("a", "1");
    opened.set("b", "two");
    opened.set("a", "3");
    opened.table.erase("b");
    opened.log.note_key("b");
    opened.sessions.remember("session of a cli", {7, Code::done, 42, {"x"}});
    opened.log.note_reply("session of a cli", {7, Code::done, 42, {"x"}});
    opened.log.commit();
    return sys::read_file(file_);
  }

  void expect_some(const Opened& opened) const {
    EXPECT_EQ(opened.log.store_name(), name_);
    EXPECT_EQ(*opened.table.find("a"), "3");
    EXPECT_EQ(opened.table.find("b"), nullptr);
    ASSERT_NE(opened.sessions.find("session of a cli", 7), nullptr);
    EXPECT_EQ(opened.sessions.find("session of a cli", 7)->number, 42);
    EXPECT_EQ(opened.sessions.find("session of a cli", 7)->parts, std::vector<std::string>{"x"});
  }

  test::TemporaryFolder folder_;
  std::string file_ = folder_ / "store.log";
  std::string name_;
};

TEST_F(StoreLog, AStoreGoesOnWithIt) {
  some_log();
  for (int time = 0; time < 3; ++time) expect_some(Opened(file_));
}

TEST_F(StoreLog, OneStoreAtATimeHasIt) {
  const Opened first(file_);
  EXPECT_EQ(test::message_of<BadInput>([&] { Opened{file_}; }),
            "the store's log " + file_ + " is in use by another store");
}

// A log that was truncated at any point because the server was killed.
TEST_F(StoreLog, ATailThatWasNotFinishedIsCutOff) {
  const std::string content = some_log();
  Opened{file_};  // opening the log compacts it: obsolete records are dropped
  ASSERT_LT(sys::read_file(file_).size(), content.size());
  const std::string base = sys::read_file(file_);
  {
    Opened opened(file_);
    opened.set("tail", "of the last record");
  }
  const std::string longer = sys::read_file(file_);
  ASSERT_TRUE(longer.starts_with(base));
  for (std::size_t size = base.size(); size < longer.size(); ++size) {
    write_file(file_, longer.substr(0, size));
    Opened opened(file_);
    expect_some(opened);
    EXPECT_EQ(opened.table.find("tail"), nullptr);
  }
  write_file(file_, base + std::string(100, '\0'));
  expect_some(Opened(file_));
  std::string changed = longer;
  changed.back() ^= 1;  // in the content of the last record
  write_file(file_, changed);
  expect_some(Opened(file_));
}

TEST_F(StoreLog, DamageInTheMiddleIsNamedAndNothingIsChanged) {
  std::string content = some_log();
  const std::size_t header = log_magic.size() + store_name_bytes + 8;
  for (const std::size_t at : {log_magic.size(), header, header + 5, header + 14, header + 20}) {
    std::string damaged = content;
    damaged[at] ^= 0x40;
    write_file(file_, damaged);
    const std::size_t named = at < header ? log_magic.size() : header;
    EXPECT_EQ(test::message_of<BadInput>([&] { Opened{file_}; }),
              "the store's log " + file_ + " is damaged at byte " + std::to_string(named))
        << at;
    EXPECT_EQ(sys::read_file(file_), damaged);
  }
}

TEST_F(StoreLog, AFileOfAnotherProgramIsRefused) {
  for (const std::string content : {"# notes", "LSLOG002aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\n"}) {
    write_file(file_, content);
    EXPECT_EQ(test::message_of<BadInput>([&] { Opened{file_}; }),
              file_ + " is not the log of a store");
    EXPECT_EQ(sys::read_file(file_), content);
  }
  EXPECT_THROW(Opened{folder_.path().string()}, Error) << "a folder";
  EXPECT_THROW(Opened{folder_ / "missing/store.log"}, SystemError);
}

TEST_F(StoreLog, DoesNotGrowWithoutEnd) {
  {
    Opened opened(file_);
    const std::string value(1 << 20, 'v');
    for (int i = 0; i < 40; ++i) opened.set("same", value + std::to_string(i));
  }
  EXPECT_LT(std::filesystem::file_size(file_), 24U << 20);
  const Opened opened(file_);
  EXPECT_TRUE(opened.table.find("same")->ends_with("v39"));
  EXPECT_LT(std::filesystem::file_size(file_), 2U << 20);
}

// The reply to the first request is sent together with the end of the connection.
TEST_F(StoreLog, HasAChangeBeforeItsReplyAlsoIfTheNextFrameIsInvalid) {
  const StoreServer server({.secret = "secret", .log = file_});
  TestClient client("secret");
  RawPeer peer(server.port());
  peer.begin(client);
  const std::string change = client.seal({1, Code::set, 0, {"key", "a new value"}});
  std::string invalid = client.seal({2, Code::keys, 0, {""}});
  invalid.back() = static_cast<char>(invalid.back() ^ 1);
  peer.send(change + invalid);
  EXPECT_EQ(client.open(peer.receive_sealed()).code, Code::done);
  EXPECT_NE(sys::read_file(file_).find("a new value"), std::string::npos);
}

TEST_F(StoreLog, DamagedLogsAreReadOrRefused) {
  const std::string content = some_log();
  for (test::FuzzRounds rounds("a store's log"); rounds.next();) {
    write_file(file_, test::mutated(content, rounds.random()));
    try {
      Opened opened(file_);
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find(file_), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::store
