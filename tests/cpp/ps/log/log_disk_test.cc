// A log folder whose disk says no: the error names what it is about. One whose server has no memory
// for a snapshot goes on.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ps/log/log_folder.h"
#include "support/ps/one_shard.h"

namespace gradring::testing::log_disk_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "gradring-disk-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }

  std::string path;
  std::string shard() const { return path + "/shard-00000-of-00001"; }
  // A folder where a file belongs, which is not empty: nobody removes it as a file.
  std::string stuck(const std::string& name) const {
    fs::create_directories(shard() + "/" + name + "/inside");
    return shard() + "/" + name;
  }
  ps::LogFolderOptions options(std::uint64_t most_log_bytes = 1u << 30) const {
    return {path, 0, 1, {}, most_log_bytes};
  }
};

// Nobody opens anything, not even root, which permissions do not stop.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_CASE("a draft that cannot be removed at the start is named") {
  const Folder folder;
  for (const char* name : {"segment-000000000009.log.draft", "snapshot-000000000009.grps.draft"}) {
    const std::string draft = folder.stuck(name);
    CHECK_THROWS_WITH_AS(OneShard{folder.options()}, doctest::Contains(draft.c_str()), DeviceError);
    fs::remove_all(draft);
  }
}

TEST_CASE("an old file that cannot be removed when the log starts anew is named") {
  const Folder folder;
  OneShard one(folder.options(0));
  one.join(1);
  one.make_tables();
  const std::string old = folder.stuck("snapshot-000000000000.grps");
  const auto sync_often = [&] {
    for (int turn = 0; turn < 100; ++turn) one.sync();
  };
  CHECK_THROWS_WITH_AS(sync_often(), doctest::Contains(old.c_str()), DeviceError);
}

TEST_CASE(
    "a log whose snapshot finds no memory grows, also after a restart, and starts anew later") {
  constexpr std::uint64_t kMost = std::uint64_t{32} << 10;
  constexpr std::uint64_t kNone = 0;
  const Folder folder;
  const auto count = [&](const char* ending) {
    std::size_t found = 0;
    for (const auto& entry : fs::directory_iterator(folder.shard()))
      found += entry.path().filename().string().ends_with(ending) ? 1 : 0;
    return found;
  };
  const auto push_often = [](OneShard& one) {
    for (int nth = 0; nth < 20; ++nth) {
      one.push_dense(1);
      one.sync();
    }
  };
  std::vector<float> expected;
  for (const std::uint64_t incarnation : {1u, 2u, 3u}) {
    OneShard one(folder.options(kMost), kNone);
    one.join(incarnation);
    one.make_tables();
    if (!expected.empty()) CHECK((one.dense() == expected));
    push_often(one);
    CHECK(count(".grps") + count(".draft") == 0);
    CHECK(one.log().segment() == incarnation);  // Nor is one begun for nothing.
    expected = one.dense();
  }
  OneShard one(folder.options(kMost));
  one.join(4);
  CHECK((one.dense() == expected));
  push_often(one);
  CHECK(count(".grps") == 1);
}

TEST_CASE("a file where a folder belongs is named") {
  const Folder folder;
  ps::LogFolderOptions options = folder.options();
  SUBCASE("that of a shard") {
    std::ofstream(folder.shard()) << "no folder";
  }
  SUBCASE("that of all shards") {
    options.folder += "/file";
    std::ofstream(options.folder) << "no folder";
  }
  SUBCASE("one above that of all shards") {
    std::ofstream(folder.path + "/file") << "no folder";
    options.folder += "/file/below";
  }
  CHECK_THROWS_WITH_AS(ps::LogFolder{options}, doctest::Contains(options.folder.c_str()),
                       DeviceError);
}

TEST_CASE("a folder that cannot be read is named") {
  const Folder folder;
  SUBCASE("that of a shard") {
    ps::LogFolder log(folder.options());
    ps::Shard shard({}, log);
    fs::rename(folder.shard(), folder.path + "/elsewhere");
    CHECK_THROWS_WITH_AS(log.replay(shard), doctest::Contains(folder.shard().c_str()), DeviceError);
  }
  SUBCASE("that of all shards") {
    const std::string text = folder.path + " cannot be read";
    const NoMoreFiles limit;
    CHECK_THROWS_WITH_AS(ps::LogFolder{folder.options()}, doctest::Contains(text.c_str()),
                         DeviceError);
  }
}

}  // namespace
}  // namespace gradring::testing::log_disk_test
