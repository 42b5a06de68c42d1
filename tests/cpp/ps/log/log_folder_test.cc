// A shard and its log folder: what was acknowledged comes back, whatever moment the process ends
// at; the log starts anew behind a snapshot; damage is refused by name.
#include "ps/log/log_folder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "support/ps/one_shard.h"

namespace gradring::testing::log_folder_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "gradring-folder-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }

  std::string path;
  std::string shard() const { return path + "/shard-00000-of-00001"; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(shard()))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

ps::LogFolderOptions options(const Folder& folder, std::uint64_t most_log_bytes = 1u << 30) {
  return {folder.path, 0, 1, {}, most_log_bytes};
}

std::vector<std::uint64_t> ids_from(std::uint64_t first, std::size_t count) {
  std::vector<std::uint64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}
const std::vector<std::uint64_t> kAll = ids_from(0, 60);

// What push number `n` does, the same in every run.
void nth_push(OneShard& one, std::uint64_t n) {
  if (n % 3 == 0)
    one.push_dense(static_cast<float>(n));
  else
    one.push(ids_from(n * 7 % 50, 1 + n % 9), static_cast<float>(n));
}

// The same pushes into a shard that was never ended.
struct Expected {
  std::vector<float> rows;
  std::vector<float> dense;
};
Expected after(std::uint64_t pushes) {
  const Folder folder;
  OneShard one(options(folder));
  one.join(1);
  one.make_tables();
  for (std::uint64_t n = 1; n <= pushes; ++n) nth_push(one, n);
  return {one.rows(kAll), one.dense()};
}
void check_is(OneShard& one, const Expected& expected) {
  CHECK((one.rows(kAll) == expected.rows));
  CHECK((one.dense() == expected.dense));
}

TEST_CASE("a shard that is ended and started again is where it was, again and again") {
  const Folder folder;
  {
    OneShard one(options(folder));
    CHECK(one.join(77) == 0);
    one.make_tables();
    one.sync();
  }
  for (std::uint64_t n = 1; n <= 12; ++n) {
    OneShard one(options(folder));
    CHECK(one.log().found().torn.empty());
    CHECK(one.join(77) == n + 1);  // The dedup window is part of the state.
    nth_push(one, n);
    one.sync();
  }
  OneShard one(options(folder));
  one.join(77);
  check_is(one, after(12));
}

TEST_CASE("a request that was acknowledged before the end is not done again after it") {
  const Folder folder;
  const std::vector<std::uint64_t> ids{4};
  const std::vector<float> ones(3, 1.0f);
  wire::PsHeader header;
  header.type = wire::PsType::kPush;
  header.table = ps::table_id("rows");
  header.count = 1;
  header.seq = 3;
  Bytes payload;
  ps::put(payload, wire::Tail{});
  ps::put_bytes(payload, std::as_bytes(std::span(ids)));
  ps::put_bytes(payload, std::as_bytes(std::span(ones)));
  std::vector<float> before;
  {
    OneShard one(options(folder));
    one.join(77);
    one.make_tables();
    one.ask(header, payload);
    one.sync();
    header.type = wire::PsType::kPush;
  }
  OneShard one(options(folder));
  CHECK(one.join(77) == 3);
  before = one.rows(ids);
  CHECK(one.ask(header, payload).header.type == wire::PsType::kDone);
  CHECK((one.rows(ids) == before));
  CHECK(one.join(78) == 0);  // Another process of that client begins anew.
}

TEST_CASE("the log starts anew behind a snapshot, while pushes go on") {
  const Folder folder;
  std::uint64_t segment = 0;
  {
    OneShard one(options(folder, 4096));
    one.join(1);
    one.make_tables();
    for (std::uint64_t n = 1; n <= 200; ++n) {
      nth_push(one, n);
      one.sync();
    }
    segment = one.log().segment();
    CHECK(segment > 3);
  }
  // What the last snapshot covers is gone; what remains is enough.
  const std::vector<std::string> files = folder.files();
  CHECK(std::count_if(files.begin(), files.end(), [](const std::string& name) {
          return name.starts_with("snapshot-") && name.ends_with(".grps");
        }) == 1);
  CHECK(files.size() <= 4);
  OneShard one(options(folder));
  CHECK(one.log().found().from_snapshot > 0);
  CHECK(one.log().found().next_record == 202);
  CHECK(one.join(1) == 202);
  check_is(one, after(200));
}

TEST_CASE("a process that ends at any moment of a new start of the log loses nothing") {
  const Folder folder;
  const Folder copy;
  OneShard one(options(folder, 3000));
  one.join(1);
  one.make_tables();
  const Expected empty = after(0);
  std::size_t drafts = 0;
  for (std::uint64_t n = 1; n <= 60; ++n) {
    nth_push(one, n);
    one.sync();
    // What a kill here would leave.
    fs::remove_all(copy.path);
    fs::copy(folder.path, copy.path, fs::copy_options::recursive);
    const std::vector<std::string> files = copy.files();
    drafts += std::any_of(files.begin(), files.end(),
                          [](const std::string& name) { return name.ends_with(".draft"); });
    OneShard other(options(copy));
    CHECK(other.join(1) == n + 2);
    check_is(other, {one.rows(kAll), one.dense()});
  }
  CHECK(drafts > 0);
  CHECK((one.rows(kAll) != empty.rows));
}

TEST_CASE("a torn tail is cut off, and the log goes on behind it") {
  const Folder folder;
  {
    OneShard one(options(folder));
    one.join(1);
    one.make_tables();
    for (std::uint64_t n = 1; n <= 5; ++n) {
      nth_push(one, n);
      one.sync();
    }
    const std::string segment = ps::segment_path(folder.shard(), 1);
    fs::copy_file(segment, segment + ".crashed");
  }
  const std::string segment = ps::segment_path(folder.shard(), 1);
  fs::rename(segment + ".crashed", segment);
  fs::resize_file(segment, fs::file_size(segment) - 3);
  {
    OneShard one(options(folder));
    CHECK(one.log().found().torn.find(segment) == 0);
    CHECK(one.join(1) == 6);
    check_is(one, after(4));
    nth_push(one, 5);
    one.sync();
  }
  OneShard one(options(folder));
  CHECK(one.log().found().torn.empty());
  one.join(1);
  check_is(one, after(5));
}

TEST_CASE("a crash while a segment was begun leaves a header that is cut off") {
  const Folder folder;
  {
    OneShard one(options(folder));
    one.join(1);
    one.make_tables();
    one.sync();
  }
  for (const std::size_t bytes : {0, 1, 63}) {
    const std::string torn = ps::segment_path(folder.shard(), bytes == 0 ? 2 : bytes == 1 ? 3 : 4);
    std::ofstream(torn, std::ios::binary) << std::string(bytes, 'x');
    OneShard one(options(folder));
    CHECK(one.join(1) == 2);
    one.sync();
  }
}

TEST_CASE("a damaged or missing file is named, and nothing is loaded") {
  const Folder folder;
  {
    OneShard one(options(folder, 2000));
    one.join(1);
    one.make_tables();
    for (std::uint64_t n = 1; n <= 40; ++n) {
      nth_push(one, n);
      one.sync();
    }
  }
  {
    OneShard one(options(folder));
  }  // One more segment.
  for (const std::string& name : folder.files()) {
    if (name == "lock") continue;
    const std::string path = folder.shard() + "/" + name;
    CAPTURE(path);
    const auto bytes = static_cast<std::size_t>(fs::file_size(path));
    fs::copy_file(path, folder.path + "/kept");
    const bool has_records = bytes > 112;  // Not only a header and the batch of the end.
    if (has_records) {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(static_cast<std::streamoff>(bytes / 2));
      const char flipped = static_cast<char>(file.get() ^ 1);
      file.seekp(static_cast<std::streamoff>(bytes / 2));
      file.put(flipped);
      file.close();
      CHECK_THROWS_WITH_AS(OneShard{options(folder)}, doctest::Contains(path.c_str()),
                           ProtocolError);
    }
    fs::remove(path);
    fs::rename(folder.path + "/kept", path);
  }
  std::vector<std::string> segments;
  for (const std::string& name : folder.files())
    if (name.starts_with("segment-")) segments.push_back(folder.shard() + "/" + name);
  REQUIRE(segments.size() >= 2);
  fs::remove(segments.front());
  CHECK_THROWS_WITH_AS(OneShard{options(folder)}, doctest::Contains(segments.front().c_str()),
                       ProtocolError);
}

// Everything a shard has, as blocks for another one.
std::vector<std::byte> everything_of(OneShard& one) {
  ps::SnapshotBytes out;
  REQUIRE(one.shard().begin_snapshot());
  while (one.shard().next_snapshot_piece(ps::Shard::kOwnSnapshot, 1000, out)) continue;
  one.shard().end_snapshot(ps::Shard::kOwnSnapshot);
  return {out.view().begin(), out.view().end()};
}

void load(OneShard& one, const std::vector<std::byte>& records) {
  one.shard().begin_load();
  one.shard().load_piece(records);
  one.shard().commit_load(false);
}

TEST_CASE("what was loaded from a checkpoint is there after a restart, with what came after it") {
  const Folder elsewhere;
  OneShard source(options(elsewhere));
  source.join(1);
  source.make_tables();
  for (std::uint64_t n = 1; n <= 9; ++n) nth_push(source, n);
  const std::vector<std::byte> checkpoint = everything_of(source);
  nth_push(source, 10);

  const Folder folder;
  {
    OneShard one(options(folder));
    one.join(1);
    one.make_tables();
    for (std::uint64_t n = 21; n <= 25; ++n) nth_push(one, n);
    one.sync();
    load(one, checkpoint);
    one.sync();
    nth_push(one, 10);
    one.sync();
  }
  OneShard one(options(folder));
  one.join(1);
  check_is(one, {source.rows(kAll), source.dense()});
}

TEST_CASE("a load that nobody was told of is taken back") {
  const Folder elsewhere;
  OneShard source(options(elsewhere));
  source.join(1);
  source.make_tables();
  nth_push(source, 1);
  const std::vector<std::byte> checkpoint = everything_of(source);

  const Folder folder;
  Expected before;
  {
    OneShard one(options(folder));
    one.join(1);
    one.make_tables();
    for (std::uint64_t n = 1; n <= 6; ++n) nth_push(one, n);
    one.sync();
    before = {one.rows(kAll), one.dense()};
    load(one, checkpoint);
  }  // The mark is written when the log is closed, its snapshot is not.
  for (int times = 0; times < 2; ++times) {
    OneShard one(options(folder));
    CHECK(one.join(1) == 8);
    check_is(one, before);
    one.sync();
  }
  {
    OneShard one(options(folder));
    one.join(1);
    nth_push(one, 7);
    one.sync();
  }
  OneShard one(options(folder));
  one.join(1);
  check_is(one, after(7));
}

TEST_CASE("a load whose taking back ends halfway is taken back by the next start") {
  const Folder folder;
  Expected before;
  {
    OneShard one(options(folder));
    one.join(1);
    one.make_tables();
    nth_push(one, 1);
    one.sync();
    before = {one.rows(kAll), one.dense()};
    load(one, everything_of(one));
  }
  // Of the load's second segment, which begins behind three records and the mark.
  const std::string later = ps::segment_path(folder.shard(), 2);
  fs::create_directories(later + "/which cannot be removed");
  CHECK_THROWS_WITH_AS(OneShard{options(folder)}, doctest::Contains(later.c_str()), DeviceError);
  fs::remove_all(later);
  {
    const ps::Log log({folder.shard(), 0, 1, {}}, 2, 4);
  }
  OneShard one(options(folder));
  CHECK(one.join(1) == 3);
  check_is(one, before);
}

TEST_CASE("a folder has one server, and one number of shards") {
  const Folder folder;
  const OneShard one(options(folder));
  CHECK_THROWS_WITH_AS(OneShard{options(folder)}, doctest::Contains("in use"), InvalidArgument);
  ps::LogFolderOptions other = options(folder);
  other.shards = 2;
  CHECK_THROWS_WITH_AS(OneShard{other}, doctest::Contains("shard-00000-of-00001"), InvalidArgument);
}

}  // namespace
}  // namespace gradring::testing::log_folder_test
