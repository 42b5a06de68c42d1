// A log that lacks its last segments says so, by name, whatever they stood beside; and no moment at
// which a process may end looks like that.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ps/log/log_files.h"
#include "ps/log/log_folder.h"
#include "support/ps/one_shard.h"

namespace gradring::testing::log_missing_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "gradring-missing-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }

  std::string path;
  std::string shard() const { return path + "/shard-00000-of-00001"; }
  ps::LogFolderOptions options(std::uint64_t most_log_bytes) const {
    return {path, 0, 1, {}, most_log_bytes};
  }
  std::vector<std::uint64_t> numbers(const char* prefix, const char* suffix) const {
    return ps::numbers_in(shard(), prefix, suffix);
  }
  std::uint64_t last_segment() const { return numbers("segment-", ".log").back(); }
};

class NoLongerFiles {
 public:
  NoLongerFiles() : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~NoLongerFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  NoLongerFiles(const NoLongerFiles&) = delete;
  NoLongerFiles& operator=(const NoLongerFiles&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

constexpr std::uint64_t kNoSnapshot = 1u << 30;
constexpr std::uint64_t kSnapshots = 600;  // Bytes of log that each takes the place of.
const std::vector<std::uint64_t> kIds{1, 2, 3};

// Pushes by a new process of the client, which ends in good order.
void run(const Folder& folder, std::uint64_t most_log_bytes, std::uint64_t incarnation) {
  OneShard one(folder.options(most_log_bytes));
  one.join(incarnation);
  one.make_tables();
  for (int time = 0; time < 9; ++time) {
    one.push(kIds, 1.0f);
    one.sync();
  }
}

std::vector<float> rows(const Folder& folder) {
  OneShard one(folder.options(kNoSnapshot));
  one.join(100);
  return one.rows(kIds);
}

void check_misses(const Folder& folder, const std::string& path) {
  CHECK_THROWS_WITH_AS(OneShard{folder.options(kNoSnapshot)},
                       doctest::Contains((path + " is missing").c_str()), ProtocolError);
}

TEST_CASE("the last segment of a log is missed, beside a snapshot and without one") {
  for (const std::uint64_t most_log_bytes : {kNoSnapshot, kSnapshots}) {
    CAPTURE(most_log_bytes);
    const Folder folder;
    run(folder, most_log_bytes, 1);
    run(folder, most_log_bytes, 2);
    const std::vector<float> before = rows(folder);
    const std::string last = ps::segment_path(folder.shard(), folder.last_segment());
    const std::string away = folder.path + "/away";
    fs::rename(last, away);
    check_misses(folder, last);
    check_misses(folder, last);  // Refusing it has changed nothing.
    fs::rename(away, last);
    CHECK((rows(folder) == before));
  }
}

TEST_CASE("the segment behind a snapshot is missed, also where nothing else tells of it") {
  const Folder folder;
  run(folder, kSnapshots, 1);
  const std::uint64_t snapshot = folder.numbers("snapshot-", ".grps").back();
  for (const std::uint64_t segment : folder.numbers("segment-", ".log"))
    fs::remove(ps::segment_path(folder.shard(), segment));
  check_misses(folder, ps::segment_path(folder.shard(), snapshot));
  for (const std::uint64_t told : folder.numbers("newest-", ""))
    fs::remove(ps::numbered(folder.shard() + "/newest-", told, ""));
  check_misses(folder, ps::segment_path(folder.shard(), snapshot));
}

TEST_CASE("the snapshot that a log begins behind is missed") {
  const Folder folder;
  run(folder, kSnapshots, 1);
  const std::uint64_t snapshot = folder.numbers("snapshot-", ".grps").back();
  const std::string path = ps::numbered(folder.shard() + "/snapshot-", snapshot, ".grps");
  fs::remove(path);
  check_misses(folder, path);
}

TEST_CASE("all segments of a log without a snapshot are missed from the first on") {
  const Folder folder;
  run(folder, kNoSnapshot, 1);
  fs::remove(ps::segment_path(folder.shard(), 1));
  check_misses(folder, ps::segment_path(folder.shard(), 1));
}

TEST_CASE("a process that ends before the number of its segment is told loses nothing") {
  for (const std::uint64_t most_log_bytes : {kNoSnapshot, kSnapshots}) {
    const Folder folder;
    run(folder, most_log_bytes, 1);
    const std::vector<float> before = rows(folder);
    const std::uint64_t last = folder.last_segment();
    ps::tell_newest_segment(folder.shard(), last - 1, false);
    CHECK((rows(folder) == before));
    CHECK((folder.numbers("newest-", "") == std::vector<std::uint64_t>{last + 1}));
    fs::remove(ps::numbered(folder.shard() + "/newest-", last + 1, ""));  // As of older servers.
    CHECK((rows(folder) == before));
    CHECK((folder.numbers("newest-", "") == std::vector<std::uint64_t>{last + 2}));
  }
}

TEST_CASE("a segment whose header a crash has torn is there until another takes its place") {
  const Folder folder;
  run(folder, kSnapshots, 1);
  const std::vector<float> before = rows(folder);
  const std::uint64_t last = folder.last_segment();
  const std::string torn = ps::segment_path(folder.shard(), last + 1);
  std::ofstream(torn, std::ios::binary) << "torn";
  ps::tell_newest_segment(folder.shard(), last + 1, false);
  {
    const NoLongerFiles limit;  // A server that ends before it has a segment of its own.
    CHECK_THROWS_AS(OneShard{folder.options(kNoSnapshot)}, DeviceError);
  }
  CHECK(fs::file_size(torn) == 4);
  CHECK((rows(folder) == before));
  CHECK(folder.last_segment() == last + 1);
}

TEST_CASE("segments of a load that is taken back are not missed, wherever that ends") {
  const Folder folder;
  {
    OneShard one(folder.options(kNoSnapshot));
    one.join(1);
    one.make_tables();
    one.push(kIds, 1.0f);
    one.sync();
    ps::SnapshotBytes all;
    REQUIRE(one.shard().begin_snapshot());
    while (one.shard().next_snapshot_piece(ps::Shard::kOwnSnapshot, 1000, all)) continue;
    one.shard().end_snapshot(ps::Shard::kOwnSnapshot);
    one.shard().begin_load();
    one.shard().load_piece(all.view());
    one.shard().commit_load(false);
  }  // The mark is written when the log is closed, its snapshot is not.
  const std::string later = ps::segment_path(folder.shard(), 2);
  fs::create_directories(later + "/which cannot be removed");
  ps::tell_newest_segment(folder.shard(), 2, false);
  CHECK_THROWS_WITH_AS(OneShard{folder.options(kNoSnapshot)}, doctest::Contains(later.c_str()),
                       DeviceError);
  fs::remove_all(later);  // And there it ends: the mark is not cut off yet.
  OneShard one(folder.options(kNoSnapshot));
  CHECK(one.join(1) == 3);
}

}  // namespace
}  // namespace gradring::testing::log_missing_test
