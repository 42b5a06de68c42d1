// A shard's log: what was synced is read back; a torn tail is told from damage, at every byte; a
// full disk is an error and loses nothing that was promised.
#include "ps/log/log.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ps/log/log_reader.h"

namespace gradring::ps::log_test {
namespace {

// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradring-log-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

struct Entry {
  std::uint64_t seq = 0;
  std::uint32_t client = 0;
  std::vector<std::byte> payload;
  friend bool operator==(const Entry&, const Entry&) = default;
};

Entry entry(std::uint64_t seq) {
  Entry made{seq, static_cast<std::uint32_t>(seq % 3), {}};
  made.payload.resize(seq * 5 % 37);
  for (std::size_t i = 0; i < made.payload.size(); ++i)
    made.payload[i] = static_cast<std::byte>(seq * 7 + i);
  return made;
}

void append(Log& log, const Entry& made) {
  wire::PsHeader header;
  header.type = wire::PsType::kPush;
  header.seq = made.seq;
  header.a = made.seq * 1000;
  log.append(header, made.payload, made.client, made.seq + 77);
}

LogOptions in(const Folder& folder, FsyncPolicy fsync = {}) {
  return {folder.path, 1, 4, fsync};
}

std::vector<Entry> read_all(const std::string& path, bool is_last, std::string* torn = nullptr) {
  LogReader reader(path, is_last);
  std::vector<Entry> entries;
  LogRecord record;
  while (reader.next(record)) {
    CHECK(record.header.type == wire::PsType::kPush);
    CHECK(record.header.a == record.header.seq * 1000);
    CHECK(record.incarnation == record.header.seq + 77);
    CHECK(record.header.payload_bytes == record.payload.size());
    entries.push_back(
        {record.header.seq, record.client, {record.payload.begin(), record.payload.end()}});
  }
  if (torn != nullptr) *torn = reader.torn();
  return entries;
}

std::vector<char> contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_file(const std::string& path, const std::vector<char>& bytes, std::size_t count) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(count));
}

std::vector<Entry> entries(std::uint64_t from, std::uint64_t to) {
  std::vector<Entry> all;
  for (std::uint64_t seq = from; seq < to; ++seq) all.push_back(entry(seq));
  return all;
}

// Six entries in three batches; returns where each batch ends. As a crash leaves it: not closed.
std::vector<std::size_t> write_three_batches(const Folder& folder, FsyncPolicy fsync) {
  std::vector<std::size_t> ends;
  const std::string path = segment_path(folder.path, 1);
  Log log(in(folder, fsync), 1, 0);
  for (std::uint64_t seq = 1; seq <= 6; ++seq) {
    append(log, entry(seq));
    if (seq % 2 != 0) continue;
    log.sync();
    ends.push_back(static_cast<std::size_t>(log.segment_bytes()));
  }
  std::filesystem::copy_file(path, path + ".crashed");
  return ends;
}

TEST_CASE("what was synced is read back in order, under every policy") {
  for (const char* policy : {"none", "always", "1 ms", "20ms"}) {
    CAPTURE(policy);
    const Folder folder;
    {
      Log log(in(folder, parse_fsync_policy(policy)), 7, 100);
      for (const Entry& made : entries(1, 50)) {
        append(log, made);
        if (made.seq % 4 == 0) log.sync();
      }
      log.sync();
      log.sync();
      CHECK(log.next_record() == 149);
    }
    LogReader reader(segment_path(folder.path, 7), false);
    CHECK(reader.shard() == 1);
    CHECK(reader.shards() == 4);
    CHECK(reader.segment() == 7);
    CHECK(reader.first_record() == 100);
    std::string torn;
    CHECK((read_all(segment_path(folder.path, 7), false, &torn) == entries(1, 50)));
    CHECK(torn.empty());
  }
}

TEST_CASE("what comes after begin_segment() goes to the next segment") {
  const Folder folder;
  {
    Log log(in(folder), 1, 0);
    append(log, entry(1));
    log.begin_segment();
    CHECK(log.segment() == 2);
    append(log, entry(2));
    append(log, entry(3));
  }  // What was appended and not synced is written when the log is closed.
  CHECK((read_all(segment_path(folder.path, 1), false) == entries(1, 2)));
  CHECK((read_all(segment_path(folder.path, 2), false) == entries(2, 4)));
  CHECK(LogReader(segment_path(folder.path, 2), true).first_record() == 1);
}

TEST_CASE("a log cut off at any byte gives the whole batches before it, and says what is torn") {
  const Folder folder;
  const std::vector<std::size_t> ends = write_three_batches(folder, {});
  const std::string path = segment_path(folder.path, 1);
  const std::vector<char> whole = contents(path + ".crashed");
  REQUIRE(whole.size() == ends.back());
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    CAPTURE(length);
    write_file(path, whole, length);
    std::uint64_t batches = 0;
    while (batches < ends.size() && ends[batches] <= length) ++batches;
    std::string torn;
    CHECK((read_all(path, true, &torn) == entries(1, 1 + 2 * batches)));
    const bool is_whole =
        length == 64 || (batches > 0 && ends[static_cast<std::size_t>(batches - 1)] == length);
    CHECK(torn.empty() == is_whole);
    // In a segment that another one follows, nothing may be torn.
    if (!is_whole) CHECK_THROWS_AS(read_all(path, false), ProtocolError);
  }
}

TEST_CASE(
    "a flipped bit is damage where a later batch vouches for it, and a torn tail behind that") {
  for (const char* policy : {"none", "always"}) {
    CAPTURE(policy);
    const Folder folder;
    const std::vector<std::size_t> ends = write_three_batches(folder, parse_fsync_policy(policy));
    const std::string path = segment_path(folder.path, 1);
    std::vector<char> bytes = contents(path + ".crashed");
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      CAPTURE(at);
      bytes[at] ^= 0x10;
      write_file(path, bytes, bytes.size());
      bytes[at] ^= 0x10;
      std::string torn;
      if (at < ends[1]) {
        CHECK_THROWS_WITH_AS(read_all(path, true), doctest::Contains("is damaged at byte "),
                             ProtocolError);
      } else {
        CHECK((read_all(path, true, &torn) == entries(1, 5)));
        CHECK_FALSE(torn.empty());
      }
    }
  }
}

TEST_CASE("a log that was closed vouches for all of it: any flipped bit is damage") {
  const Folder folder;
  {
    Log log(in(folder), 1, 0);
    append(log, entry(1));
    log.sync();
    append(log, entry(2));
  }
  const std::string path = segment_path(folder.path, 1);
  std::vector<char> bytes = contents(path);
  const std::size_t closing = bytes.size() - 48;
  for (std::size_t at = 0; at < closing; ++at) {
    CAPTURE(at);
    bytes[at] ^= 1;
    write_file(path, bytes, bytes.size());
    bytes[at] ^= 1;
    CHECK_THROWS_AS(read_all(path, true), ProtocolError);
  }
}

TEST_CASE("damage names the file and the byte, and says what to do") {
  const Folder folder;
  const std::vector<std::size_t> ends = write_three_batches(folder, {});
  const std::string path = segment_path(folder.path, 1);
  std::vector<char> bytes = contents(path + ".crashed");
  bytes[ends[0] + 60] ^= 1;
  write_file(path, bytes, bytes.size());
  const std::string expected = str(path, " is damaged at byte ", ends[0], " of ", bytes.size(),
                                   ": a batch's checksum is wrong");
  CHECK_THROWS_WITH_AS(read_all(path, true), doctest::Contains(expected.c_str()), ProtocolError);
}

TEST_CASE("with an interval, what no fdatasync has covered yet may be torn in any order") {
  const Folder folder;
  const std::vector<std::size_t> ends =
      write_three_batches(folder, parse_fsync_policy("3600000 ms"));
  const std::string path = segment_path(folder.path, 1);
  std::vector<char> bytes = contents(path + ".crashed");
  bytes[ends[0] + 60] ^= 1;  // The second batch never came to the disk, the third did.
  write_file(path, bytes, bytes.size());
  std::string torn;
  CHECK((read_all(path, true, &torn) == entries(1, 3)));
  CHECK_FALSE(torn.empty());
}

TEST_CASE("bytes that look like a batch of another log prove nothing") {
  const Folder folder;
  const Folder other;
  const std::vector<std::size_t> ends = write_three_batches(folder, {});
  write_three_batches(other, {});
  const std::string path = segment_path(folder.path, 1);
  std::vector<char> bytes = contents(path + ".crashed");
  const std::vector<char> strange = contents(segment_path(other.path, 1) + ".crashed");
  bytes.resize(ends[1]);
  bytes[ends[0] + 60] ^= 1;
  bytes.insert(bytes.end(), strange.begin() + static_cast<std::ptrdiff_t>(ends[1]), strange.end());
  write_file(path, bytes, bytes.size());
  std::string torn;
  CHECK((read_all(path, true, &torn) == entries(1, 3)));
  CHECK_FALSE(torn.empty());
}

TEST_CASE("a full disk is an error that names the file; what was promised is read back") {
  const Folder folder;
  const std::string path = segment_path(folder.path, 1);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    Log log(in(folder, parse_fsync_policy("always")), 1, 0);
    append(log, entry(1));
    append(log, entry(2));
    log.sync();
    rlimit small = before;
    small.rlim_cur = log.segment_bytes() + 100;
    ::setrlimit(RLIMIT_FSIZE, &small);
    append(log, entry(3));
    append(log, entry(4));
    CHECK_THROWS_WITH_AS(log.sync(), doctest::Contains(path.c_str()), DeviceError);
    ::setrlimit(RLIMIT_FSIZE, &before);
    // It stays failed, although there is room again: what it dropped is missing in between.
    append(log, entry(5));
    CHECK_THROWS_WITH_AS(log.sync(), doctest::Contains("takes no more changes"), DeviceError);
  }
  std::signal(SIGXFSZ, handler);
  std::string torn;
  CHECK((read_all(path, true, &torn) == entries(1, 3)));
  CHECK(torn.empty());
}

TEST_CASE("a segment that is there is never written over") {
  const Folder folder;
  {
    const Log log(in(folder), 1, 0);
  }
  CHECK_THROWS_AS(Log(in(folder), 1, 0), DeviceError);
}

TEST_CASE("a policy is none, always or milliseconds") {
  CHECK(parse_fsync_policy("none").kind == FsyncKind::kNone);
  CHECK(parse_fsync_policy("always").kind == FsyncKind::kAlways);
  CHECK(parse_fsync_policy("50 ms").kind == FsyncKind::kInterval);
  CHECK(parse_fsync_policy("50 ms").interval == Millis{50});
  CHECK(parse_fsync_policy("7").interval == Millis{7});
  for (const char* wrong : {"", "ms", "0", "-1", "never", "5 s", "5.5", "99999999999"})
    CHECK_THROWS_AS(parse_fsync_policy(wrong), InvalidArgument);
}

}  // namespace
}  // namespace gradring::ps::log_test
